// How the ranks of a host wake one another and wait: some spinning, then yielding, then sleeping on a futex.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "smddp/errors.hpp"
#include "transport/arena.hpp"
#include "transport/arena_lane.hpp"
#include "transport/cores.hpp"
#include "transport/far_fence.hpp"

namespace smddp {
namespace {

// With a core for each rank the peer is usually a few microseconds away. With fewer, spinning only keeps the awaited
// rank from running (4 ranks on 2 cores, 4 KiB: 53 us with 2000 spins, 4 us with 20).
constexpr std::chrono::microseconds kSpinTime{40};
// Who spins beside a wire moves nothing on it meanwhile, and waits are as long as the wire makes them: 2 hosts with 2
// ranks, 16 MiB on links that nothing limits: 12.1 ms with the times above, 10.8 with this one; 128 MiB on links of
// 1 Gbit/s: 370 and 340 ms of CPU time.
constexpr std::chrono::microseconds kSpinTimeBesideWire{5};
constexpr int kSpinsShared = 20;
constexpr int kYields = 50;
// Some 2 us: who waits longer looks where the other is.
constexpr int kSpinsBeforeLook = 50;
// A sleeper looks for dead peers and aborts this often.
constexpr long kNapNanoseconds = 10'000'000;
// The same while the wire has something to move: socket buffers bridge this much time at 40 Gbit/s.
constexpr long kBusyNapNanoseconds = 200'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A pause takes from 4 to 140 cycles, depending on the processor.
int spins_in(std::chrono::nanoseconds time) {
  using Clock = std::chrono::steady_clock;
  constexpr int kSample = 500;
  auto shortest = std::chrono::nanoseconds::max();
  for (int turn = 0; turn < 3; ++turn) {
    const auto start = Clock::now();
    for (int i = 0; i < kSample; ++i) relax();
    shortest = std::min(shortest, std::chrono::nanoseconds(Clock::now() - start));
  }
  return static_cast<int>(time.count() * kSample / std::max<long>(shortest.count(), kSample));
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

/// Counts the calling thread among a lane's sleepers.
class Sleeper {
 public:
  explicit Sleeper(std::atomic<std::uint32_t>& sleepers) : sleepers_(sleepers) { ++sleepers_; }
  ~Sleeper() { --sleepers_; }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  std::atomic<std::uint32_t>& sleepers_;
};

}  // namespace

int Arena::spins_of_a_wait() const {
  if (!own_cores_) return kSpinsShared;
  return std::max(spins_in(hook_ ? kSpinTimeBesideWire : kSpinTime), kSpinsBeforeLook + 1);
}

void Arena::signal_reduced(const Round& round) { signal(lane(me_).reduced, round.number); }

// A rank that goes to sleep either sees the counter or is seen: by the sequentially consistent pairs (bell, sleepers)
// here and (sleepers, bell) in sleep_until(), or by the far fence there, which orders counter and sleepers here.
void Arena::signal(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  Lane& mine = lane(me_);
  mine.core.store(::sched_getcpu(), std::memory_order_relaxed);
  counter.store(value, std::memory_order_release);
  if (far_fences_) {
    near_fence();
    if (mine.sleepers.load(std::memory_order_relaxed) == 0) return;
  }
  mine.bell.fetch_add(1, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) > 0) futex(mine.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Arena::await_number(const Op& op, int local_rank, Phase phase, std::uint64_t number, int spins) {
  const Lane& theirs = lane(local_rank);
  const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
  // What comes before and after a call of another library's is carried out by its threads: they need the cores.
  if (op.header.delegated) {
    if (counter.load(std::memory_order_acquire) < number) sleep_until(op, local_rank, phase, number);
    return;
  }
  for (int i = 0; i < spins; ++i) {
    if (counter.load(std::memory_order_acquire) >= number) return;
    if (i == kSpinsBeforeLook) step_aside(local_rank);
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (counter.load(std::memory_order_acquire) >= number) return;
    ::sched_yield();
  }
  sleep_until(op, local_rank, phase, number);
}

// Schedulers leave two ranks on one core while another idles, for seconds (seen on Linux 6.18): each wait then ends
// with a change of tasks instead of some spins. 2 ranks, all-reduce of 256 KiB: 180 us so, 32 on two cores.
void Arena::step_aside(int local_rank) {
  if (!own_cores_) return;
  const int here = ::sched_getcpu();
  if (lane(local_rank).core.load(std::memory_order_relaxed) != here) return;
  cpu_set_t taken;
  CPU_ZERO(&taken);
  for (int r = 0; r < size(); ++r) CPU_SET(lane(r).core.load(std::memory_order_relaxed), &taken);
  leave_cores(taken);
  lane(me_).core.store(::sched_getcpu(), std::memory_order_relaxed);
}

void Arena::sleep_until(const Op& op, int local_rank, Phase phase, std::uint64_t number) {
  Lane& theirs = lane(local_rank);
  const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
  const auto reached = [&] { return counter.load(std::memory_order_acquire) >= number; };
  const int rank = members_[static_cast<std::size_t>(local_rank)];
  const Sleeper asleep(theirs.sleepers);
  // Once for all naps: from here on every signal is one that somebody may sleep on.
  const bool seen = !far_fences_ || far_fence();
  for (;;) {
    const bool busy = hook_ && hook_(op);
    const timespec nap{0, busy || !seen ? kBusyNapNanoseconds : kNapNanoseconds};
    const std::uint32_t heard = theirs.bell.load(std::memory_order_seq_cst);
    if (!reached()) futex(theirs.bell, FUTEX_WAIT, heard, &nap);
    if (reached()) return;
    control_->set_awaited(op.header.sequence, behind(phase, number));
    control_->check(op);
    if (control_->closed(rank)) {
      // It may have finished its part of the operation and left in good order between the two looks.
      if (reached()) return;
      control_->settle();
      throw_peer_closed(op, rank, control_->how_lost(rank));
    }
    if (op.deadline.passed()) throw_timeout(op, control_->blame(behind(phase, number)));
  }
}

std::vector<int> Arena::behind(Phase phase, std::uint64_t number) const {
  std::vector<int> ranks;
  for (int r = 0; r < layout_.ranks; ++r) {
    const Lane& theirs = lane(r);
    const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
    if (r != me_ && counter.load(std::memory_order_acquire) < number)
      ranks.push_back(members_[static_cast<std::size_t>(r)]);
  }
  return ranks;
}

}  // namespace smddp
