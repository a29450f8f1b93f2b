#include "transport/arena.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "memory.hpp"
#include "smddp/errors.hpp"
#include "transport/cores.hpp"
#include "transport/far_fence.hpp"
#include "transport/peer_memory.hpp"

namespace smddp {

// Counters of one rank. They are written by that rank alone (but `sleepers`) and alone on their cache lines: two of 64
// bytes, since the hardware fetches lines in pairs.
struct alignas(128) Arena::Lane {
  std::atomic<std::uint64_t> published;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint64_t> unread;    // the last round of which it could not fetch what it should
  std::atomic<std::uint32_t> bell;      // futex word: changes with every signal that somebody may sleep on
  std::atomic<std::uint32_t> sleepers;  // ranks that sleep on the bell
  std::atomic<int> core;                // that it ran on at its last signal
  cpu_set_t cores;                      // that it may use
  MemoryProof proof;
  std::atomic<bool> reads_all;  // every other rank's memory
  std::atomic<bool> obeys;      // far fences, and has a core of its own
  std::atomic<std::uint32_t> withdrawn;
  struct {
    OpHeader op;
    Remark remark;
  } announced[kUnits];  // of the last rounds, each of which has at least a unit
};

struct alignas(128) Arena::Header {
  std::uint64_t magic;
  std::uint32_t ranks;
  std::uint64_t chunk_bytes;
  Nonce nonce;
  std::atomic<Stores> stores;
  std::atomic<bool> direct;
  std::atomic<bool> measured;
  std::atomic<bool> tries;
};

namespace {

constexpr std::uint64_t kArenaMagic = 0x33414E4552415344;  // "DSARENA3"
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "counters are shared between processes");

// With a core for each rank the peer is usually a few microseconds away. With fewer, spinning only keeps the awaited
// rank from running (4 ranks on 2 cores, 4 KiB: 53 us with 2000 spins, 4 us with 20).
constexpr std::chrono::microseconds kSpinTime{40};
// A rank that reads another's memory takes longer over it: a wait for that spins this many times as long.
constexpr int kSpinsForReaders = 10;
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

// About an L2 cache: 64 KiB and 8 MiB were both 1.5 to 2 times slower at 128 MiB.
constexpr std::size_t kMostChunk = std::size_t{1} << 20;
// Many ranks take less each, since a host's rings together should not take more than this.
constexpr std::size_t kRings = std::size_t{32} << 20;
// Chunks do not get smaller than this, for many ranks or for lack of memory.
constexpr std::size_t kLeastChunk = std::size_t{64} << 10;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

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

// What a rank has written for all others and what they have for it, with as much of its tensor, is one L2 cache then
// (2 ranks, 16 MiB: 1.51 ms, 1.57 with twice as much).
std::size_t mailboxes_of_a_rank(std::size_t chunk_bytes) { return chunk_bytes / 2; }

std::size_t automatic_chunk(int ranks, std::size_t chunks) {
  const std::size_t cache = l2_cache_bytes();
  const std::size_t rings = chunks * static_cast<std::size_t>(ranks);
  std::size_t chunk = kMostChunk;
  while (chunk > kLeastChunk && ((cache > 0 && chunk > cache) || chunk * rings > kRings)) chunk /= 2;
  return chunk;
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

std::size_t Arena::rings_offset(int ranks) {
  return round_up(sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(Lane), kPage);
}

std::size_t Arena::bytes_for(const Layout& layout) {
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  return rings_offset(layout.ranks) + ranks * (kChunks * layout.chunk_bytes + mailboxes_of_a_rank(layout.chunk_bytes));
}

std::size_t Arena::mailboxes_offset() const {
  return rings_offset(size()) + static_cast<std::size_t>(size()) * kChunks * layout_.chunk_bytes;
}

Arena Arena::create(const Layout& layout) {
  const bool automatic = layout.chunk_bytes == 0;
  Layout chosen = layout;
  // Every rank's lane of a reduce-scatter must hold a useful run of elements.
  const std::size_t least = static_cast<std::size_t>(layout.ranks) * std::size_t{1024};
  chosen.chunk_bytes = automatic ? automatic_chunk(layout.ranks, kChunks) : layout.chunk_bytes;
  chosen.chunk_bytes = round_up(std::max(chosen.chunk_bytes, least), kPage);
  for (;;) {
    try {
      Arena arena(Segment::create(bytes_for(chosen), layout.nonce, segment_name(layout.nonce, layout.host)), chosen);
      Header& header = arena.header();
      header.magic = kArenaMagic;
      header.ranks = static_cast<std::uint32_t>(layout.ranks);
      header.chunk_bytes = chosen.chunk_bytes;
      header.nonce = layout.nonce;
      return arena;
    } catch (const Error&) {
      if (!automatic || chosen.chunk_bytes / 2 < std::max(kLeastChunk, least)) throw;
      chosen.chunk_bytes = round_up(chosen.chunk_bytes / 2, kPage);
    }
  }
}

Arena Arena::open(const std::string& address, const Layout& layout, const Deadline& deadline) {
  Segment segment = Segment::open(address, layout.nonce, deadline);
  const auto* header = reinterpret_cast<const Header*>(segment.data());
  Layout found = layout;
  if (segment.bytes() >= sizeof(Header)) found.chunk_bytes = header->chunk_bytes;
  if (segment.bytes() < sizeof(Header) || header->magic != kArenaMagic ||
      header->ranks != static_cast<std::uint32_t>(layout.ranks) || header->nonce != layout.nonce ||
      segment.bytes() != bytes_for(found))
    throw Error(ErrorKind::system, "smddp: shared memory " + address + " is not this group's");
  return Arena(std::move(segment), found);
}

Arena::Arena(Segment segment, const Layout& layout)
    : segment_(std::move(segment)), layout_(layout), unit_bytes_(layout.chunk_bytes * kChunks / kUnits) {}

void Arena::join(int local_rank, std::vector<int> members, Control& control) {
  me_ = local_rank;
  members_ = std::move(members);
  control_ = &control;
  spins_ = kSpinsShared;
  lane(me_).cores = allowed_cores();
  std::random_device random;
  proof_ = std::make_unique<std::uint64_t>(std::uint64_t{random()} << 32U | random());
  lane(me_).proof = {::getpid(), reinterpret_cast<std::uintptr_t>(proof_.get()), *proof_};
}

void Arena::meet(const Op& op, bool direct) {
  const Round round = begin(op, 0);
  publish(op, round);
  await_all_published(op, round, true);
  std::vector<cpu_set_t> masks;
  for (int r = 0; r < size(); ++r) masks.push_back(lane(r).cores);
  own_cores_ = cores_suffice(masks, quota_cores());
  if (own_cores_) spins_ = std::max(spins_in(hook_ ? kSpinTimeBesideWire : kSpinTime), kSpinsBeforeLook + 1);
  find_abilities(op, direct);
}

// What ranks do only if all of a host can.
void Arena::find_abilities(const Op& op, bool direct) {
  for (int r = 0; r < size(); ++r) direct = direct && (r == me_ || can_read(lane(r).proof));
  lane(me_).reads_all.store(direct, std::memory_order_relaxed);
  // Ranks that share cores sleep in every operation, and far fences disturb who works.
  lane(me_).obeys.store(own_cores_ && obey_far_fences(), std::memory_order_relaxed);
  const Round round = begin(op, 0);
  publish(op, round);
  await_all_published(op, round, true);
  const auto all = [&](std::atomic<bool> Lane::* ability) {
    bool every = true;
    for (int r = 0; r < size(); ++r) every = every && (lane(r).*ability).load(std::memory_order_relaxed);
    return every;
  };
  direct_ = all(&Lane::reads_all);
  far_fences_ = all(&Lane::obeys);
}

Arena::Header& Arena::header() const { return *reinterpret_cast<Header*>(segment_.data()); }

// A fresh segment is all zero bytes, which are the counters' initial values.
Arena::Lane& Arena::lane(int local_rank) const {
  return reinterpret_cast<Lane*>(segment_.data() + sizeof(Header))[local_rank];
}

Arena::Decision Arena::decision() const {
  return {header().stores.load(std::memory_order_relaxed), header().direct.load(std::memory_order_relaxed),
          header().measured.load(std::memory_order_relaxed), header().tries.load(std::memory_order_relaxed)};
}

void Arena::decide(const Decision& decision) {
  header().stores.store(decision.stores, std::memory_order_relaxed);
  header().direct.store(decision.direct, std::memory_order_relaxed);
  header().measured.store(decision.measured, std::memory_order_relaxed);
  header().tries.store(decision.tries, std::memory_order_relaxed);
}

bool Arena::apart() const {
  std::set<int> cores;
  for (int r = 0; r < layout_.ranks; ++r) cores.insert(lane(r).core.load(std::memory_order_relaxed));
  return static_cast<int>(cores.size()) == layout_.ranks;
}

std::byte* Arena::slot(int local_rank, const Round& round) {
  const std::size_t ring = kChunks * layout_.chunk_bytes;
  return segment_.data() + rings_offset(size()) + static_cast<std::size_t>(local_rank) * ring +
         round.unit * unit_bytes_;
}

// A whole number of part_of()'s units, of whatever type: else the larger parts of a full round would be a line longer
// than a mailbox.
std::size_t Arena::mailbox_bytes() const {
  constexpr std::size_t unit = kPartUnit * kWidest;
  return mailboxes_of_a_rank(layout_.chunk_bytes) / static_cast<std::size_t>(size()) / unit * unit;
}

std::byte* Arena::mailbox(int from, int to) {
  const auto row = static_cast<std::size_t>(turned_ ? to : from);
  const auto column = static_cast<std::size_t>(turned_ ? from : to);
  return segment_.data() + mailboxes_offset() + row * mailboxes_of_a_rank(layout_.chunk_bytes) +
         column * mailbox_bytes();
}

// A slot is never that of the round before: the round that is waited for is one that this rank has published itself.
Arena::Round Arena::begin(const Op& op, std::size_t bytes, bool of_many) {
  const auto units = static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + unit_bytes_ - 1) / unit_bytes_));
  std::uint32_t aligned = 1;
  while (aligned < units) aligned *= 2;
  cursor_ = (cursor_ + aligned - 1) / aligned * aligned;
  const std::uint32_t soon = units > kSmallUnits ? kLargeEnd : of_many ? kManyEnd : kUnits;
  if (cursor_ + units > kUnits || (cursor_ + units > soon && last_begin_ >= units)) cursor_ = 0;
  last_begin_ = cursor_;
  const Round round{++round_, cursor_, spins_};
  std::uint64_t before = 0;
  for (std::uint32_t u = cursor_; u < cursor_ + units; ++u) {
    before = std::max(before, last_use_[u]);
    last_use_[u] = round.number;
  }
  cursor_ += units;
  if (before > 0 && settled_ <= before) {
    for (int r = 0; r < size(); ++r) await_number(op, r, Phase::published, before + 1, spins_);
    settled_ = before + 1;
  }
  return round;
}

void Arena::publish(const Op& op, const Round& round) {
  Lane& mine = lane(me_);
  mine.announced[round.number % kUnits] = {op.header, remark_};
  signal(mine.published, round.number);
}

Arena::Round Arena::lend(const Op& op, const std::vector<const void*>& addresses, bool looked) {
  Round round = begin(op, addresses.size() * sizeof(std::uintptr_t));
  if (own_cores_ && !hook_) round.spins *= kSpinsForReaders;
  const auto can_be_read = [pid = lane(me_).proof.pid](std::uintptr_t address) {
    std::byte first{};
    return read_memory_of(pid, address, &first, 1) == 0;
  };
  auto* const lent = reinterpret_cast<std::uintptr_t*>(slot(me_, round));
  const void* before = nullptr;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(addresses[i] ? addresses[i] : proof_.get());
    const bool same = i > 0 && addresses[i] == before;
    lent[i] = same ? lent[i - 1] : !looked || can_be_read(address) ? address : 0;
    before = addresses[i];
  }
  publish(op, round);
  return round;
}

bool Arena::lent_by_all(const Round& round, std::size_t addresses) {
  for (int r = 0; r < size(); ++r) {
    const auto* lent = reinterpret_cast<const std::uintptr_t*>(slot(r, round));
    if (std::count(lent, lent + addresses, std::uintptr_t{0}) > 0) return false;
  }
  return true;
}

bool Arena::fetch(const Op& op, int local_rank, const Round& round, std::size_t index, std::size_t offset, void* to,
                  std::size_t bytes) {
  if (bytes == 0) return true;
  Lane& theirs = lane(local_rank);
  const std::uintptr_t address = reinterpret_cast<const std::uintptr_t*>(slot(local_rank, round))[index];
  const int error = read_memory_of(theirs.proof.pid, address + offset, to, bytes);
  // What was read before they withdraw is what they lent. Not a plain load, which could be carried out before the copy.
  const bool withdrawn = theirs.withdrawn.fetch_or(0, std::memory_order_seq_cst) != 0;
  if (withdrawn || (error != 0 && error != EFAULT)) throw_unreadable(op, local_rank, error);
  return error == 0;
}

void Arena::throw_unreadable(const Op& op, int local_rank, int error_number) {
  const int rank = members_[static_cast<std::size_t>(local_rank)];
  control_->settle();
  if (error_number == 0 || error_number == ESRCH || control_->closed(rank))
    throw_peer_closed(op, rank, control_->how_lost(rank));
  throw Error(ErrorKind::system, describe(op.header) + ": cannot read the memory of " + who(op, {rank}) + ": " +
                                     std::strerror(error_number) + " (SMDDP_SHM_DIRECT=never does without)");
}

void Arena::withdraw() { lane(me_).withdrawn.store(1, std::memory_order_seq_cst); }

void Arena::signal_reduced(const Round& round) { signal(lane(me_).reduced, round.number); }

void Arena::signal_unread(const Round& round) {
  lane(me_).unread.store(round.number, std::memory_order_relaxed);
  signal_reduced(round);
}

// A later round cannot have changed it: this rank has not published any.
bool Arena::unread_by(int local_rank, const Round& round) const {
  return lane(local_rank).unread.load(std::memory_order_relaxed) == round.number;
}

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

void Arena::await_all_published(const Op& op, const Round& round, bool verify) {
  for (int r = 0; r < size(); ++r)
    if (r != me_) await(op, r, Phase::published, round);
  settled_ = round.number;
  if (!verify) return;
  heard_ = lane(planner_).announced[round.number % kUnits].remark;
  for (int r = 0; r < size(); ++r) {
    const auto& theirs = lane(r).announced[round.number % kUnits];
    heard_.started = std::max(heard_.started, theirs.remark.started);
    if (r != me_)
      check_same(op, members_[static_cast<std::size_t>(me_)], theirs.op, members_[static_cast<std::size_t>(r)]);
  }
}

}  // namespace smddp
