#include "fabric_plan.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <thread>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// A first message that takes longer than this never comes.
constexpr std::chrono::milliseconds kGreeting{60'000};

// Completions are often there sooner than a sleeper would wake up. Where ranks outnumber cores, looking for them only
// keeps the awaited rank from running.
constexpr int kCompletionSpins = 50;

bool wanted(const Env& env, const std::vector<RankInfo>& ranks, const Topology& topology) {
  if (topology.path != Path::flat && topology.path != Path::hierarchical) return false;
  if (env.net != Net::automatic || env.tcp_only) return env.net == Net::fabric;
  return std::all_of(ranks.begin(), ranks.end(), [](const RankInfo& info) { return info.efa; });
}

// What a rank says of its port. One line: "+", the address in hexadecimal, " " and the bytes of its largest message; or
// "-" and why there is none.
struct Offer {
  std::string address;
  std::size_t longest = 0;
};

std::string to_line(const FabricPort& port) {
  static const char digits[] = "0123456789abcdef";
  std::string text = "+";
  for (const char c : port.address()) {
    const auto byte = static_cast<unsigned char>(c);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text + " " + std::to_string(port.longest());
}

std::string to_refusal(const Error& error) {
  std::string reason = without_name(error.what());
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return "-" + reason;
}

int value_of(char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

Offer offer_in(const std::string& line) {
  const std::size_t space = std::min(line.find(' '), line.size());
  Offer offer;
  const char* const number = line.data() + std::min(space + 1, line.size());
  const char* const end = line.data() + line.size();
  const auto [rest, fault] = std::from_chars(number, end, offer.longest);
  if (space % 2 == 0 || line.find_first_not_of("0123456789abcdef", 1) < space || fault != std::errc{} || rest != end ||
      offer.longest == 0)
    throw Error(ErrorKind::system, "unreadable address in the store: " + line);
  for (std::size_t i = 1; i + 1 < space; i += 2)
    offer.address += static_cast<char>(value_of(line[i]) << 4 | value_of(line[i + 1]));
  return offer;
}

// Why the group cannot go over the fabric; "" if it can.
std::string objections(const std::vector<std::string>& offers, const std::vector<RankInfo>& ranks) {
  std::string text;
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (!offers[r].empty() && offers[r][0] == '+') continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) + " on " + ranks[r].name + ": " +
            (offers[r].empty() ? "no answer" : offers[r].substr(1));
  }
  return text;
}

}  // namespace

bool can_use_efa(const Env& env) { return env.net != Net::tcp && efa_present() && fabric_unavailable().empty(); }

FabricPlan plan_fabric(const Env& env, const std::vector<RankInfo>& ranks, const Topology& topology,
                       const std::string& address, const Share& share) {
  FabricPlan plan;
  if (!wanted(env, ranks, topology)) return plan;
  std::string offer;
  try {
    plan.port = open_fabric({env.fabric_provider, address, topology.local_rank});
    offer = to_line(*plan.port);
  } catch (const Error& error) {
    offer = to_refusal(error);
  }
  const std::vector<std::string> offers = share(offer);
  const std::string against = objections(offers, ranks);
  if (against.empty()) {
    plan.longest = plan.port->longest();
    for (const std::string& line : offers) {
      const Offer theirs = offer_in(line);
      plan.addresses.push_back(theirs.address);
      plan.longest = std::min(plan.longest, theirs.longest);
    }
    return plan;
  }
  plan.port.reset();
  if (env.net == Net::fabric)
    throw Error(ErrorKind::system, "SMDDP_NET=fabric, and not every rank can use it: " + against);
  if (topology.rank == 0)
    std::fprintf(stderr, "smddp: going over TCP: not every rank can use the fabric: %s\n", against.c_str());
  return plan;
}

std::unique_ptr<Wire> fabric_wire(FabricPlan plan, const Env& env, const Topology& topology,
                                  const std::vector<int>& peers, const Nonce& nonce, Control& control,
                                  const Deadline& deadline) {
  std::map<int, std::string> addresses;
  for (const int rank : peers)
    if (rank != topology.rank) addresses[rank] = plan.addresses[static_cast<std::size_t>(rank)];
  FabricPace pace;
  pace.segment_bytes = std::min(env.fabric_segment_bytes, plan.longest);
  pace.spins =
      std::thread::hardware_concurrency() >= static_cast<unsigned>(topology.local_size()) ? kCompletionSpins : 0;
  const Deadline greeting(deadline.left(kGreeting) + std::chrono::milliseconds(1));
  return connect_fabric(std::move(plan.port), topology.rank, addresses, nonce, control, pace, greeting);
}

}  // namespace smddp
