// How a host's ranks learn what suits the machine: once when they meet, then from their operations.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <sstream>

#include "collective/host_tier.hpp"

namespace smddp {
namespace {

// The first of each find pages that were never touched.
constexpr int kProbes = 5;
// Ranks that just met may sit on one core for some milliseconds, which says nothing about how they will work.
constexpr int kMostProbes = 24;
// Streaming costs up to twice as much where caches are shared and gains seven times where they are not: in doubt,
// cached.
constexpr double kClearly = 1.5;
// Smaller chunks say nothing about the caches.
constexpr std::size_t kLeastProbe = std::size_t{64} << 10;

// Messages, of all ranks together, from which on several ways are tried. With smaller ones the clock costs more than
// there is to gain.
constexpr std::size_t kLeastTried = std::size_t{64} << 10;
// Mailboxes for many ranks are small, and every one takes a copy.
constexpr std::size_t kLeastMailbox = std::size_t{16} << 10;
// Larger messages are in no cache, where the kernel's copies, page by page, were slower (128 MiB: 35 ms instead of 26).
constexpr std::size_t kMostDirect = std::size_t{64} << 20;
// Of a broadcast: one rank at each end leaves slots time to win earlier (2 far cores, slots and direct: 1 MiB 90 and 80
// us, 16 MiB 1.3 and 1.5 ms, 64 MiB 5.9 and 12 ms).
constexpr std::size_t kMostDirectBroadcast = std::size_t{8} << 20;

Reduction sum_of_floats() { return {ReduceOp::sum, DType::f32, DType::f32, 1}; }

}  // namespace

// The least of several times of each.
HostTier::Times HostTier::compare(const Op& op, const std::function<double()>& one,
                                  const std::function<double()>& other) {
  constexpr double kNever = std::numeric_limits<double>::max();
  Times least{kNever, kNever, false};
  int good = 0;
  for (int turn = 0; turn < kMostProbes; ++turn) {
    const Times now{one(), other(), !arena_.spinning() || arena_.apart()};
    if (now.apart && !least.apart) least = now;
    if (now.apart == least.apart) least = {std::min(least.one, now.one), std::min(least.other, now.other), now.apart};
    good += now.apart ? 1 : 0;
    if (rank() == 0) arena_.decide({stores_, direct_, good >= kProbes, tries_});
    barrier(op);
    const bool measured = arena_.decision().measured;
    barrier(op);
    if (measured) break;
  }
  return least;
}

// What counts is measured itself, not the latency between two of the cores: an exchange of one chunk.
double HostTier::time_of_chunk(const Op& op, Stores stores, Scratch& memory) {
  using Clock = std::chrono::steady_clock;
  way_.stores = stores;
  barrier(op);
  const auto start = Clock::now();
  const std::size_t bytes = arena_.chunk_bytes();
  std::byte* data = memory.at_least(bytes);
  Chunk chunk{{}, data, data, bytes / sizeof(float)};
  copy_in(op, chunk, sizeof(float));
  reduce_own(op, chunk, sum_of_floats(), false);
  copy_out(op, chunk, sizeof(float));
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void HostTier::tune(const Op& op, const Env& env) {
  arena_.meet(op, env.shm_direct != When::never);
  // Not each for itself: ranks whose containers have different quotas would go different ways.
  if (rank() == 0) arena_.decide({stores_, false, false, arena_.spinning()});
  barrier(op);
  tries_ = arena_.decision().tries;
  Scratch memory;
  std::fill_n(memory.at_least(arena_.chunk_bytes()), arena_.chunk_bytes(), std::byte{0});
  choose_stores(op, env.shm_stores, memory);
  choose_direct(op, env.shm_direct);
  choose_mailboxes(env.shm_mailboxes);
}

void HostTier::choose_stores(const Op& op, const std::string& wanted, Scratch& memory) {
  Stores chosen = wanted == "streaming" ? Stores::streaming : Stores::cached;
  if (wanted.empty() && arena_.chunk_bytes() >= kLeastProbe) {
    const Times times = compare(
        op, [&] { return time_of_chunk(op, Stores::cached, memory); },
        [&] { return time_of_chunk(op, Stores::streaming, memory); });
    if (times.one > kClearly * times.other) chosen = Stores::streaming;
    std::ostringstream text;
    text.precision(0);
    text << std::fixed << " (a chunk cached " << times.one << " us, streaming " << times.other << " us)";
    probed_ = text.str();
  }
  if (rank() == 0) arena_.decide({chosen, false, false, tries_});
  barrier(op);
  way_.stores = stores_ = arena_.decision().stores;
  // Where ranks share cores, what the first one measures depends on who runs when.
  try_stores_ = wanted.empty() && can_stream() && tries_;
}

void HostTier::choose_direct(const Op& op, When wanted) {
  if (wanted == When::never)
    why_direct_ = "no direct reads (SMDDP_SHM_DIRECT=never)";
  else if (!arena_.direct())
    why_direct_ = "no direct reads (the system does not let these ranks read one another's memory)";
  else if (wanted == When::always)
    why_direct_ = "direct reads always";
  else if (!arena_.spinning())
    why_direct_ = "no direct reads (they need a core for each rank)";
  else
    why_direct_ = "direct reads where they turn out to be faster";
  const bool chosen = arena_.direct() && (wanted == When::always || (wanted == When::automatic && arena_.spinning()));
  if (rank() == 0) arena_.decide({stores_, chosen, false, tries_});
  barrier(op);
  direct_ = arena_.decision().direct;
  direct_always_ = direct_ && wanted == When::always;
}

void HostTier::choose_mailboxes(When wanted) {
  mailboxes_ = wanted == When::always || (wanted == When::automatic && arena_.mailbox_bytes() >= kLeastMailbox);
  mailboxes_always_ = wanted == When::always;
  if (wanted == When::never)
    why_mailboxes_ = "no mailboxes (SMDDP_SHM_MAILBOXES=never)";
  else if (!mailboxes_)
    why_mailboxes_ = "no mailboxes (too small, for so many ranks and chunks of this size)";
  else if (mailboxes_always_ || !tries_)
    why_mailboxes_ = "mailboxes always";
  else
    why_mailboxes_ = "mailboxes where they turn out to be faster";
}

// The first is gone until others were tried.
HostTier::Ways HostTier::ways_of(OpKind kind, std::size_t bytes) const {
  const Way slots{stores_, Route::slots};
  const Way other_stores{stores_ == Stores::cached ? Stores::streaming : Stores::cached, Route::slots};
  const Way mailboxes{stores_, Route::mailboxes};
  const Way direct{stores_, Route::direct};
  // What one rank writes for all others comes from its slots.
  const bool in_mailboxes = mailboxes_ && kind != OpKind::broadcast;
  if (direct_always_ && bytes > 0) return {{direct}, 1};
  // What ranks that share cores would measure is who runs when.
  if (in_mailboxes && (mailboxes_always_ || !tries_)) return {{mailboxes}, 1};
  Ways ways;
  if (in_mailboxes) ways.add(mailboxes);
  ways.add(slots);
  if (try_stores_ && !in_mailboxes) ways.add(other_stores);
  if (direct_ && bytes <= (kind == OpKind::broadcast ? kMostDirectBroadcast : kMostDirect)) ways.add(direct);
  return ways;
}

HostTier::Turn HostTier::begin_turn(OpKind kind, std::size_t bytes, int root) {
  const Ways ways = ways_of(kind, bytes);
  way_ = ways.list[0];
  if (ways.count == 1 || bytes < kLeastTried || size() == 1) return {};
  unsigned size_class = 0;
  for (std::size_t rest = bytes / kLeastTried; rest > 1; rest /= 2) ++size_class;
  // A root that writes for others is done before they are: it would measure less than there is.
  const int planner = root == 0 ? 1 : 0;
  Trial& trial = trials_.try_emplace({kind, planner, size_class}, ways.count).first->second;
  way_ = ways.list[static_cast<std::size_t>(trial.way())];
  arena_.remark({std::chrono::steady_clock::now().time_since_epoch(), rank() == planner ? trial.plan() : 0}, planner);
  return {&trial, bytes};
}

// What a rank did before the last one came is no part of the time, or a trial would measure who was late.
void HostTier::end_turn(const Turn& turn) {
  if (!turn.trial) return;
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now().time_since_epoch() - arena_.heard().started;
  turn.trial->took(time.count(), turn.bytes);
  turn.trial->follow(arena_.heard().plan);
}

std::string HostTier::description() const {
  return std::string(stores_ == Stores::streaming ? "streaming" : "cached") + " stores" +
         (try_stores_ ? " at first" : "") + probed_ + ", chunks of " + std::to_string(arena_.chunk_bytes() >> 10) +
         " KiB, " + why_mailboxes_ + ", " + why_direct_ + ", " +
         (arena_.spinning() ? "a core for each rank" : "fewer cores than ranks: no spinning");
}

}  // namespace smddp
