#include "transport/connect.hpp"

#include <cstdint>
#include <cstring>
#include <random>
#include <set>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

constexpr std::uint32_t kMagic = 0x50444D53;  // "SMDP"
// Changes when the bytes between ranks change, so that mixed versions are refused and not misread.
constexpr std::uint32_t kProtocol = 1;

struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t rank = 0;
  std::int32_t channel = 0;
  Nonce nonce{};
};
static_assert(sizeof(Hello) == 32, "Hello travels as plain bytes");

using Key = std::pair<int, int>;  // rank, channel

Peers& peers_of(Connections& connections, int channel) {
  if (channel == static_cast<int>(Channel::control)) return connections.control;
  return connections.data[static_cast<std::size_t>(channel - static_cast<int>(Channel::data))];
}

Socket greet(const RankInfo& info, int rank, int channel, const Nonce& nonce, const Deadline& deadline) {
  Socket socket = connect_to(info.address, info.port, deadline);
  Hello hello;
  hello.rank = rank;
  hello.channel = channel;
  hello.nonce = nonce;
  if (!send_all(socket, &hello, sizeof(hello), deadline))
    throw PeerError("smddp: " + info.address + " closed the connection during the handshake");
  return socket;
}

void accept_expected(const Socket& listener, std::set<Key> expected, const Nonce& nonce, const Deadline& deadline,
                     Connections& connections) {
  while (!expected.empty()) {
    Socket socket = accept_from(listener, deadline);
    if (!socket.open()) {
      std::vector<int> missing;
      for (const Key& key : expected)
        if (missing.empty() || missing.back() != key.first) missing.push_back(key.first);
      throw TimeoutError("smddp: no connection from " + join_ranks(missing) + " in " +
                         std::to_string(deadline.seconds()) + " s");
    }
    // A stranger that says nothing (a port scanner) costs this much, not the whole deadline.
    const Deadline soon(deadline.left(std::chrono::milliseconds(2000)) + std::chrono::milliseconds(1));
    Hello hello;
    if (!recv_all(socket, &hello, sizeof(hello), soon)) continue;
    if (hello.magic != kMagic || hello.protocol != kProtocol || hello.nonce != nonce) continue;
    if (expected.erase({hello.rank, hello.channel}) == 0) continue;
    peers_of(connections, hello.channel)[hello.rank] = std::move(socket);
  }
}

}  // namespace

Nonce make_nonce() {
  static const char digits[] = "0123456789abcdef";
  std::random_device random;
  Nonce nonce;
  for (char& c : nonce) c = digits[random() % 16];
  return nonce;
}

Connections connect_peers(const Socket& listener, const std::vector<RankInfo>& ranks, int rank, const Wanted& wanted,
                          const Nonce& nonce, const Deadline& deadline) {
  Connections connections;
  std::set<Key> expected;
  connections.data.resize(static_cast<std::size_t>(wanted.streams));
  std::vector<std::pair<int, const std::vector<int>*>> lists{{static_cast<int>(Channel::control), &wanted.control}};
  for (int s = 0; s < wanted.streams; ++s) lists.emplace_back(static_cast<int>(Channel::data) + s, &wanted.data);
  for (const auto& [channel, list] : lists) {
    for (const int peer : *list) {
      if (peer == rank) continue;
      if (peer > rank)
        expected.insert({peer, channel});
      else
        peers_of(connections, channel)[peer] =
            greet(ranks[static_cast<std::size_t>(peer)], rank, channel, nonce, deadline);
    }
  }
  accept_expected(listener, std::move(expected), nonce, deadline, connections);
  return connections;
}

}  // namespace smddp
