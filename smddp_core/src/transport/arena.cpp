#include "transport/arena.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "memory.hpp"
#include "smddp/errors.hpp"
#include "transport/arena_lane.hpp"
#include "transport/cores.hpp"
#include "transport/far_fence.hpp"
#include "transport/peer_memory.hpp"

namespace smddp {
namespace {

constexpr std::uint64_t kArenaMagic = 0x33414E4552415344;  // "DSARENA3"

// About an L2 cache: 64 KiB and 8 MiB were both 1.5 to 2 times slower at 128 MiB.
constexpr std::size_t kMostChunk = std::size_t{1} << 20;
// Many ranks take less each, since a host's rings together should not take more than this.
constexpr std::size_t kRings = std::size_t{32} << 20;
// Chunks do not get smaller than this, for many ranks or for lack of memory.
constexpr std::size_t kLeastChunk = std::size_t{64} << 10;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

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
  spins_ = spins_of_a_wait();
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
  spins_ = spins_of_a_wait();
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
