#include "transport/interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>

#include "smddp/errors.hpp"
#include "transport/socket.hpp"

namespace smddp {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');)
    if (!word.empty()) words.push_back(word);
  return words;
}

template <class Accept>
const Interface* first_accepted(const std::vector<Interface>& interfaces, Accept accept) {
  for (const bool v4 : {true, false})
    for (const Interface& entry : interfaces)
      if (entry.v4 == v4 && accept(entry)) return &entry;
  return nullptr;
}

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  else if (address->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  return text;
}

// An IPv6 link-local address needs a scope and means nothing to other hosts.
bool usable(const sockaddr* address) {
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// The local address packets to `host` leave from: connecting a datagram socket picks it and sends nothing. "" when
// there is no route.
std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    const int fd = ::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const Socket socket(fd);
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    auto* address = reinterpret_cast<sockaddr*>(&local);
    if (::connect(fd, entry->ai_addr, entry->ai_addrlen) == 0 && ::getsockname(fd, address, &length) == 0 &&
        usable(address))
      return numeric(address);
  }
  return "";
}

}  // namespace

const Interface* match_nccl(const std::string& filter, const std::vector<Interface>& interfaces) {
  std::string text = filter;
  const bool exclude = !text.empty() && text[0] == '^';
  if (exclude) text.erase(0, 1);
  const bool exact = !text.empty() && text[0] == '=';
  if (exact) text.erase(0, 1);
  const std::vector<std::string> words = split(text);
  if (words.empty()) return nullptr;
  return first_accepted(interfaces, [&](const Interface& entry) {
    const bool named = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return exact ? entry.name == word : entry.name.compare(0, word.size(), word) == 0;
    });
    // A filter of exclusions is about networks between hosts, and never means the loopback.
    return exclude ? !named && entry.name != "lo" : named;
  });
}

const Interface* match_names(const std::string& names, const std::vector<Interface>& interfaces) {
  for (const std::string& name : split(names))
    if (const Interface* found = first_accepted(interfaces, [&](const Interface& entry) { return entry.name == name; }))
      return found;
  return nullptr;
}

std::vector<Interface> list_interfaces() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next)
    if (entry->ifa_addr && (entry->ifa_flags & IFF_UP) && usable(entry->ifa_addr))
      interfaces.push_back({entry->ifa_name, numeric(entry->ifa_addr), entry->ifa_addr->sa_family == AF_INET});
  return interfaces;
}

std::string choose_address(const std::vector<Interface>& interfaces,
                           const std::function<std::string(const char*)>& get) {
  const std::string ours = get("SMDDP_SOCKET_IFNAME");
  if (!ours.empty()) {
    if (const Interface* found = match_nccl(ours, interfaces)) return found->address;
    std::set<std::string> known;  // one may have several addresses
    std::string names;
    for (const Interface& entry : interfaces)
      if (known.insert(entry.name).second) names += (names.empty() ? "" : ", ") + entry.name;
    throw UsageError("smddp: SMDDP_SOCKET_IFNAME=" + ours + " matches no interface that is up (there are: " + names +
                     ")");
  }
  if (const Interface* found = match_nccl(get("NCCL_SOCKET_IFNAME"), interfaces)) return found->address;
  for (const char* name : {"GLOO_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME"})
    if (const Interface* found = match_names(get(name), interfaces)) return found->address;
  const std::string master = get("MASTER_ADDR");
  const std::string local = master.empty() ? "" : local_address_towards(master);
  if (!local.empty()) return local;
  const Interface* outward = first_accepted(interfaces, [](const Interface& entry) { return entry.name != "lo"; });
  return outward ? outward->address : "127.0.0.1";
}

}  // namespace smddp
