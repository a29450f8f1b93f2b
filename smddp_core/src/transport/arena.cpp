#include "transport/arena.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <sstream>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp {

// Counters of one rank. They are written by that rank alone (but `sleepers`) and alone on their cache lines: two of 64
// bytes, since the hardware fetches lines in pairs.
struct alignas(128) Arena::Lane {
  std::atomic<std::uint64_t> published;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint32_t> bell;      // futex word: changes with every signal
  std::atomic<std::uint32_t> sleepers;  // ranks that sleep on the bell
  OpHeader announced[kSlots];
};

struct alignas(128) Arena::Header {
  std::uint64_t magic;
  std::uint32_t ranks;
  std::uint64_t slot_bytes;
  Nonce nonce;
};

namespace {

constexpr std::uint64_t kMagic = 0x31414E4552415344;  // "DSARENA1"
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "counters are shared between processes");

// With a core for each rank the peer is usually a few microseconds away: spin for about 20. With fewer, spinning only
// keeps the awaited rank from running (4 ranks on 2 cores, 4 KiB: 53 us with 2000 spins, 4 us with 20).
constexpr int kSpinsOwnCore = 2000;
constexpr int kSpinsShared = 20;
constexpr int kYields = 50;
// A sleeper looks for dead peers and aborts this often.
constexpr long kNapNanoseconds = 10'000'000;
// The same while the wire has something to move: socket buffers bridge this much time at 40 Gbit/s.
constexpr long kBusyNapNanoseconds = 200'000;
constexpr std::chrono::milliseconds kPatience{200};

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

std::string megabytes(double bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << bytes / (1 << 20) << " MiB";
  return text.str();
}

[[noreturn]] void throw_too_small(std::size_t bytes, int error_number) {
  struct statvfs fs{};
  const bool known = ::statvfs("/dev/shm", &fs) == 0;
  const double unit = static_cast<double>(fs.f_frsize);
  throw Error(ErrorKind::system,
              "smddp: cannot reserve " + megabytes(static_cast<double>(bytes)) + " of shared memory (" +
                  std::strerror(error_number) + "); /dev/shm has " +
                  (known ? megabytes(unit * static_cast<double>(fs.f_bavail)) + " free of " +
                               megabytes(unit * static_cast<double>(fs.f_blocks))
                         : "an unknown size") +
                  ". Give the container more (docker run --shm-size), or set a smaller SMDDP_SHM_CHUNK_BYTES, or "
                  "SMDDP_TRANSPORT=tcp");
}

}  // namespace

Arena Arena::create(const Layout& layout) {
  const Nonce random = make_nonce();
  const std::string name = "/smddp-" + std::string(random.begin(), random.end());
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) throw_system("shm_open " + name, errno);
  try {
    Arena arena(fd, name, layout);
    auto* header = reinterpret_cast<Header*>(arena.base_);
    header->magic = kMagic;
    header->ranks = static_cast<std::uint32_t>(layout.ranks);
    header->slot_bytes = arena.layout_.slot_bytes;
    header->nonce = layout.nonce;
    return arena;
  } catch (...) {
    ::shm_unlink(name.c_str());
    throw;
  }
}

Arena Arena::open(const std::string& name, const Layout& layout) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0)
    throw_system("shm_open " + name + " (ranks that look like one host do not share /dev/shm; set SMDDP_TRANSPORT=tcp)",
                 errno);
  Arena arena(fd, name, layout);
  const auto* header = reinterpret_cast<const Header*>(arena.base_);
  if (header->magic != kMagic || header->ranks != static_cast<std::uint32_t>(layout.ranks) ||
      header->slot_bytes != arena.layout_.slot_bytes || header->nonce != layout.nonce)
    throw Error(ErrorKind::system,
                "smddp: shared memory " + name +
                    " is not this group's (different SMDDP_SHM_CHUNK_BYTES on the ranks of a host?)");
  return arena;
}

// Takes `fd`. The creator's pages are reserved here and not on first touch, where a full /dev/shm would be a SIGBUS.
Arena::Arena(int fd, std::string name, const Layout& layout) : layout_(layout), name_(std::move(name)) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  layout_.slot_bytes = round_up(layout.slot_bytes, page);
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  slots_offset_ = round_up(sizeof(Header) + ranks * sizeof(Lane), page);
  bytes_ = slots_offset_ + ranks * kSlots * layout_.slot_bytes;
  const int refused = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes_));
  void* base = refused ? MAP_FAILED : ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error_number = refused ? refused : errno;
  ::close(fd);
  if (base == MAP_FAILED) throw_too_small(bytes_, error_number);
  base_ = static_cast<std::byte*>(base);
}

Arena::Arena(Arena&& other) noexcept
    : layout_(other.layout_),
      name_(std::move(other.name_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      slots_offset_(other.slots_offset_),
      me_(other.me_),
      spins_(other.spins_),
      members_(std::move(other.members_)),
      control_(other.control_),
      round_(other.round_),
      hook_(std::move(other.hook_)) {}

Arena::~Arena() {
  if (base_) ::munmap(base_, bytes_);
}

void Arena::unlink(const std::string& name) { ::shm_unlink(name.c_str()); }

void Arena::join(int local_rank, std::vector<int> members, Control& control) {
  me_ = local_rank;
  members_ = std::move(members);
  control_ = &control;
  spins_ = usable_cores() >= size() ? kSpinsOwnCore : kSpinsShared;
}

// A fresh segment is all zero bytes, which are the counters' initial values.
Arena::Lane& Arena::lane(int local_rank) const { return reinterpret_cast<Lane*>(base_ + sizeof(Header))[local_rank]; }

std::byte* Arena::slot(int local_rank, std::uint64_t round) {
  const std::uint64_t index = static_cast<std::uint64_t>(local_rank) * kSlots + round % kSlots;
  return base_ + slots_offset_ + index * layout_.slot_bytes;
}

std::uint64_t Arena::begin(const Op& op) {
  const std::uint64_t round = ++round_;
  if (round >= kSlots)
    for (int r = 0; r < size(); ++r) await(op, r, Phase::published, round - kSlots + 1);
  return round;
}

void Arena::publish(const Op& op, std::uint64_t round) {
  Lane& mine = lane(me_);
  mine.announced[round % kSlots] = op.header;
  signal(mine.published, round);
}

void Arena::signal_reduced(std::uint64_t round) { signal(lane(me_).reduced, round); }

// The sequentially consistent pair (bell, sleepers) here and (sleepers, bell) in sleep_until() makes sure that a rank
// that goes to sleep either sees the counter or is seen.
void Arena::signal(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  Lane& mine = lane(me_);
  counter.store(value, std::memory_order_release);
  mine.bell.fetch_add(1, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) > 0) futex(mine.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Arena::await(const Op& op, int local_rank, Phase phase, std::uint64_t round) {
  const Lane& theirs = lane(local_rank);
  const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
  for (int i = 0; i < spins_; ++i) {
    if (counter.load(std::memory_order_acquire) >= round) return;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (counter.load(std::memory_order_acquire) >= round) return;
    ::sched_yield();
  }
  sleep_until(op, local_rank, phase, round);
}

void Arena::sleep_until(const Op& op, int local_rank, Phase phase, std::uint64_t round) {
  Lane& theirs = lane(local_rank);
  const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
  const auto reached = [&] { return counter.load(std::memory_order_acquire) >= round; };
  const int rank = members_[static_cast<std::size_t>(local_rank)];
  for (;;) {
    const timespec nap{0, hook_ && hook_(op) ? kBusyNapNanoseconds : kNapNanoseconds};
    theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t heard = theirs.bell.load(std::memory_order_seq_cst);
    if (!reached()) futex(theirs.bell, FUTEX_WAIT, heard, &nap);
    theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (reached()) return;
    control_->set_awaited(op.header.sequence, behind(phase, round));
    control_->check();
    if (control_->closed(rank)) {
      // It may have finished its part of the operation and left in good order between the two looks.
      if (reached()) return;
      control_->settle(kPatience);
      throw_peer_closed(op, rank);
    }
    if (op.deadline.passed()) throw_timeout(op, behind(phase, round));
  }
}

std::vector<int> Arena::behind(Phase phase, std::uint64_t round) const {
  std::vector<int> ranks;
  for (int r = 0; r < layout_.ranks; ++r) {
    const Lane& theirs = lane(r);
    const auto& counter = phase == Phase::published ? theirs.published : theirs.reduced;
    if (r != me_ && counter.load(std::memory_order_acquire) < round)
      ranks.push_back(members_[static_cast<std::size_t>(r)]);
  }
  return ranks;
}

void Arena::await_all_published(const Op& op, std::uint64_t round, bool verify) {
  for (int r = 0; r < size(); ++r)
    if (r != me_) await(op, r, Phase::published, round);
  if (!verify) return;
  for (int r = 0; r < size(); ++r)
    if (r != me_)
      check_same(op, members_[static_cast<std::size_t>(me_)], lane(r).announced[round % kSlots],
                 members_[static_cast<std::size_t>(r)]);
}

}  // namespace smddp
