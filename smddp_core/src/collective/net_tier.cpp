#include "collective/net_tier.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "memory.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

// Up to this size a broadcast goes straight from the root: a second hop costs more than the root's extra bytes. (Four
// hosts, 64 KiB: 73 us by two hops instead of 60 on links as fast as their cores, 0.55 ms instead of 1.1 at 1 Gbit/s.)
constexpr std::size_t kDirectBroadcastBytes = std::size_t{32} << 10;

// A larger one goes in so many blocks, of this size at least.
constexpr std::size_t kBroadcastStep = std::size_t{64} << 10;
constexpr std::size_t kBroadcastBlocks = 16;

// Two ranks send the same bytes in one step as in two; what one step costs is that both sum everything, and after the
// transfer instead of meanwhile.
constexpr std::size_t kOneShotPairBytes = std::size_t{256} << 10;

// Ways of an all-reduce. The last where sums can be passed on.
constexpr int kTwoSteps = 0;
constexpr int kOneShot = 1;
constexpr int kHalving = 2;
constexpr int kWays = 3;

// Bytes up to which a gather or a reduce-scatter of all ranks' blocks goes by way of others where that is a gain;
// beyond, the bytes count and not the messages. A broadcast does up to kDirectBroadcastBytes.
constexpr std::size_t kRelayBytes = std::size_t{256} << 10;

// So many pieces or blocks are posted between two looks at the clock.
constexpr std::size_t kPostedAtOnce = 1024;

std::size_t total_bytes(const std::vector<MutableBlock>& blocks) {
  std::size_t total = 0;
  for (const MutableBlock& block : blocks) total += block.bytes;
  return total;
}

// Rank r's message among those of all ranks; this rank's own is not there.
std::byte* block_of(std::byte* incoming, int r, std::size_t bytes) {
  return incoming + static_cast<std::size_t>(r) * bytes;
}

}  // namespace

NetTier::NetTier(Wire& wire, std::vector<int> members, int rank, const NetSettings& settings)
    : wire_(wire),
      members_(std::move(members)),
      me_(rank),
      settings_(settings),
      headers_(members_.size()),
      sources_(members_.size()) {}

void NetTier::announce(const Op& op) {
  announced_ = op.header;
  announced_.plan = plan_;
}

// A plan is no part of what must be the same.
void NetTier::hear(const Op& op, OpHeader& theirs, int r) {
  if (theirs.plan > 0 && theirs.plan <= kWays) plan_ = std::exchange(theirs.plan, std::uint8_t{0});
  check_same(op, global(me_), theirs, global(r));
  wire_.release(global(r));
}

// The pieces of a peer are complete in order: data that follows counts for nothing before its header was compared.
void NetTier::post_headers(const Op& op) {
  announce(op);
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    OpHeader& theirs = headers_[static_cast<std::size_t>(r)];
    wire_.send(global(r), &announced_, sizeof(OpHeader));
    wire_.recv(global(r), &theirs, sizeof(OpHeader), [this, &op, &theirs, r] { hear(op, theirs, r); });
  }
}

// Where everybody sends as much as it receives, a late rank's own data are what others wait for; to give it theirs in
// advance gains nothing. (A broadcast's root only sends. Where there are two, no third waits for anything.)
void NetTier::hold_peers() {
  if (size() > 2) wire_.hold(members_);
}

void NetTier::wait_for(const Op& op, const std::size_t& arrived, std::size_t bytes) {
  wire_.run_until(op, [&] { return arrived >= bytes; });
}

void NetTier::barrier(const Op& op) {
  if (settings_.relay) return relay(op, std::vector<MutableBlock>(members_.size()), Headers::swapped);
  post_headers(op);
  finish(op);
}

// What is posted takes memory and time, without end where a number of bytes is a slip: 2^46 are 2^28 pieces.
void NetTier::stop_if_late(const Op& op, int r, std::size_t posted) const {
  if (posted % kPostedAtOnce == kPostedAtOnce - 1 && op.deadline.passed()) throw_timeout(op, {global(r)});
}

void NetTier::send_pieces(const Op& op, int r, const void* data, std::size_t bytes) {
  for (std::size_t at = 0, n = 0; at < bytes; at += settings_.piece_bytes) {
    stop_if_late(op, r, n++);
    wire_.send(global(r), bytes_at(data, at), std::min(settings_.piece_bytes, bytes - at));
  }
}

void NetTier::recv_pieces(const Op& op, int r, void* data, std::size_t bytes, std::size_t& arrived) {
  for (std::size_t at = 0, posted = 0; at < bytes; at += settings_.piece_bytes) {
    stop_if_late(op, r, posted++);
    const std::size_t n = std::min(settings_.piece_bytes, bytes - at);
    wire_.recv(global(r), bytes_at(data, at), n, [&arrived, n] { arrived += n; });
  }
}

void NetTier::start_all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks,
                               std::vector<std::size_t>& arrived) {
  hold_peers();
  post_headers(op);
  arrived.assign(blocks.size(), 0);
  const MutableBlock& mine = blocks[static_cast<std::size_t>(me_)];
  arrived[static_cast<std::size_t>(me_)] = mine.bytes;
  for (int k = 1; k < size(); ++k) {
    const auto r = static_cast<std::size_t>(after(k));
    send_pieces(op, after(k), in, mine.bytes);
    recv_pieces(op, after(k), blocks[r].data, blocks[r].bytes, arrived[r]);
  }
  // The links carry meanwhile what others get, where that takes them longer than another look at the sockets.
  for (std::size_t at = 0; at < mine.bytes && mine.data != in; at += settings_.piece_bytes) {
    if (mine.bytes >= settings_.piece_bytes) wire_.progress(op);
    copy_bytes(bytes_at(mine.data, at), bytes_at(in, at), std::min(settings_.piece_bytes, mine.bytes - at));
  }
}

void NetTier::all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) {
  if (relays() && total_bytes(blocks) <= kRelayBytes) {
    const MutableBlock& mine = blocks[static_cast<std::size_t>(me_)];
    copy_bytes(mine.data, in, mine.bytes);
    return relay(op, blocks, Headers::swapped);
  }
  std::vector<std::size_t> arrived;
  start_all_gather(op, in, blocks, arrived);
  finish(op);
}

// Two hops: the root sends each other rank one part, which that rank relays to everyone else but the root. The root's
// link carries the block once, the others' less.
void NetTier::broadcast_block(std::byte* data, std::size_t bytes, int root, std::size_t& arrived) {
  const auto part = [bytes, root, this](int r) { return part_of(bytes, size() - 1, (r - root - 1 + size()) % size()); };
  const auto send = [data, part, this](int to, int of) {
    wire_.send(global(to), data + part(of).first, part(of).count);
  };
  if (me_ == root) {
    for (int k = 1; k < size(); ++k) send(after(k), after(k));
    arrived += bytes;
    return;
  }
  // The block counts as a whole: its parts come in any order.
  const auto missing = std::make_shared<std::size_t>(bytes);
  const auto expect = [&](int from, const Part& piece, const std::function<void()>& then) {
    wire_.recv(global(from), data + piece.first, piece.count, [missing, &arrived, bytes, piece, then] {
      if ((*missing -= piece.count) == 0) arrived += bytes;
      if (then) then();
    });
  };
  expect(root, part(me_), [send, root, this] {
    for (int k = 1; k < size(); ++k)
      if (after(k) != root) send(after(k), me_);
  });
  for (int k = 1; k < size(); ++k)
    if (after(k) != root) expect(after(k), part(after(k)), {});
}

// A part is relayed when all of it is there, so the last block's parts are what the second hop adds. No part may be
// empty (part_of() rounds to 16 bytes): blocks are complete in order because every peer has a part of each.
std::size_t NetTier::broadcast_step(std::size_t bytes) const {
  const auto n = static_cast<std::size_t>(size());
  const std::size_t wanted = std::min(std::max(bytes / kBroadcastBlocks, kBroadcastStep), settings_.block_bytes);
  return std::max(wanted, 16 * n * n);
}

void NetTier::start_broadcast(const Op& op, void* data, std::size_t bytes, int root, std::size_t& arrived) {
  post_headers(op);
  arrived = 0;
  if (bytes > kDirectBroadcastBytes && size() > 2) {
    const std::size_t step = broadcast_step(bytes);
    for (std::size_t at = 0, n = 0, posted = 0; at < bytes; at += n) {
      stop_if_late(op, me_ == root ? after(1) : root, posted++);
      // No short last block: see broadcast_step().
      n = bytes - at < 2 * step ? bytes - at : step;
      broadcast_block(bytes_at(data, at), n, root, arrived);
    }
  } else if (me_ == root) {
    for (int k = 1; k < size(); ++k) send_pieces(op, after(k), data, bytes);
    arrived = bytes;
  } else {
    recv_pieces(op, root, data, bytes, arrived);
  }
}

void NetTier::broadcast(const Op& op, void* data, std::size_t bytes, int root) {
  if (relays() && bytes <= kDirectBroadcastBytes) return relay_broadcast(op, data, bytes, root);
  std::size_t arrived = 0;
  start_broadcast(op, data, bytes, root, arrived);
  finish(op);
}

ReducePipe NetTier::start_reduction(const Op& op, const Reduction& reduction, std::size_t total) {
  hold_peers();
  post_headers(op);
  return ReducePipe(wire_, members_, me_, op, reduction, total, settings_, memory_);
}

// `blocks` in steps, so that those of all ranks together are one exchange.
void NetTier::reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  std::size_t longest = 0;
  std::size_t total = 0;
  for (const Block& block : blocks) {
    longest = std::max(longest, block.count);
    total += block.count;
  }
  if (can_double(reduction) && total * width <= kRelayBytes && !coded(op, reduction))
    return halve(op, blocks, out, reduction);
  const std::size_t step = std::max<std::size_t>(settings_.summed_block(size()) / width / blocks.size(), 1);
  ReducePipe pipe = start_reduction(op, reduction, total);
  for (std::size_t at = 0; at < longest; at += step) {
    std::vector<Block> pieces;
    for (const Block& block : blocks) {
      const std::size_t count = block.count > at ? std::min(block.count - at, step) : 0;
      pieces.push_back({count ? bytes_at(block.data, at * width) : nullptr, count});
    }
    const bool mine = pieces[static_cast<std::size_t>(me_)].count > 0;
    pipe.reduce_scatter(pieces, mine ? bytes_at(out, at * size_of(reduction.out)) : nullptr);
  }
  pipe.close();
  pipe.finish_all();
}

std::size_t NetTier::extra_bytes(std::size_t bytes) const {
  const auto n = static_cast<std::size_t>(size());
  return (n - 1) * (n - 2) * bytes / n;
}

bool NetTier::in_one_step(std::size_t bytes) const {
  return extra_bytes(bytes) <= settings_.one_shot_bytes && bytes <= kOneShotPairBytes;
}

Trial* NetTier::trial_of(std::size_t bytes, bool halving) {
  if (size() == 2 || in_one_step(bytes) || extra_bytes(bytes) > settings_.try_bytes) return nullptr;
  unsigned size_class = 0;
  for (std::size_t rest = bytes; rest > 1; rest /= 2) ++size_class;
  return &trials_[halving].try_emplace(size_class, halving ? kWays : kHalving).first->second;
}

void NetTier::swap_all(const Op& op, const void* in, std::byte* incoming, std::size_t bytes) {
  post_headers(op);
  for (int k = 1; k < size(); ++k) {
    wire_.send(global(after(k)), in, bytes);
    wire_.recv(global(after(k)), block_of(incoming, after(k), bytes), bytes);
  }
  finish(op);
}

void NetTier::one_shot(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  if (can_double(reduction)) return double_up(op, in, out, count, reduction);
  const std::size_t bytes = count * size_of(reduction.in);
  std::byte* const incoming = incoming_.at_least(bytes * static_cast<std::size_t>(size()));
  if (relays()) {
    std::vector<MutableBlock> blocks;
    for (int r = 0; r < size(); ++r) blocks.push_back({block_of(incoming, r, bytes), bytes});
    // Of its own block a rank sends only.
    blocks[static_cast<std::size_t>(me_)].data = const_cast<void*>(in);
    relay(op, blocks, Headers::swapped);
  } else {
    swap_all(op, in, incoming, bytes);
  }
  for (int r = 0; r < size(); ++r) sources_[static_cast<std::size_t>(r)] = r == me_ ? in : block_of(incoming, r, bytes);
  if (count > 0) reduce_in_pairs(out, sources_.data(), size(), count, reduction);
}

bool NetTier::coded(const Op& op, const Reduction& reduction) const {
  return wire_type_of(reduction, op.header.bytes, settings_) != reduction.in;
}

void NetTier::all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t bytes = count * size_of(reduction.in);
  if (coded(op, reduction)) return two_steps(op, in, out, count, reduction);
  if (in_one_step(bytes)) return one_shot(op, in, out, count, reduction);
  Trial* const trial = trial_of(bytes, can_double(reduction));
  if (trial)
    try_all_reduce(*trial, op, in, out, count, reduction);
  else
    two_steps(op, in, out, count, reduction);
}

// All ways give the same bits. What the first rank plans travels in its header, and where headers go by way of other
// ranks, in theirs. Its own time includes how long others are late, both ways alike.
void NetTier::try_all_reduce(Trial& trial, const Op& op, const void* in, void* out, std::size_t count,
                             const Reduction& reduction) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  plan_ = me_ == 0 ? static_cast<std::uint8_t>(trial.plan() + 1) : std::uint8_t{0};
  if (trial.way() == kTwoSteps)
    two_steps(op, in, out, count, reduction);
  else if (trial.way() == kOneShot)
    one_shot(op, in, out, count, reduction);
  else
    halve_and_gather(op, in, out, count, reduction);
  const auto plan = std::exchange(plan_, std::uint8_t{0});
  if (me_ == 0) trial.took(std::chrono::duration<double>(Clock::now() - start).count(), count * size_of(reduction.in));
  if (plan == 0)
    throw Error(ErrorKind::system, describe(op.header) + ": rank " + std::to_string(members_[0]) +
                                       " did not say how the next one goes (smddp of another version?)");
  trial.follow(plan - 1);
}

// In place is safe: the result of shard i comes back only after rank i has received this rank's input of it.
void NetTier::two_steps(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t step = std::max<std::size_t>(settings_.summed_block(size()) / size_of(reduction.in), 1);
  ReducePipe pipe = start_reduction(op, reduction, count);
  for (std::size_t at = 0; at < count; at += step)
    pipe.all_reduce(bytes_at(in, at * size_of(reduction.in)), bytes_at(out, at * size_of(reduction.out)),
                    std::min(step, count - at));
  pipe.close();
  pipe.finish_all();
}

}  // namespace smddp
