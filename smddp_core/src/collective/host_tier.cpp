#include "collective/host_tier.hpp"

#include <algorithm>

#include "memory.hpp"

namespace smddp {
HostTier::HostTier(Arena arena, std::size_t one_shot_bytes)
    : arena_(std::move(arena)),
      one_shot_bytes_(std::min(one_shot_bytes, arena_.slot_bytes())),
      sources_(static_cast<std::size_t>(arena_.size())) {}

void HostTier::barrier(const Op& op) {
  const std::uint64_t round = arena_.begin(op);
  arena_.publish(op, round);
  arena_.await_all_published(op, round, true);
}

void HostTier::broadcast(const Op& op, void* data, std::size_t bytes, int root) {
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(bytes - at, arena_.slot_bytes());
    const std::uint64_t round = arena_.begin(op);
    if (rank() == root) copy_bytes(arena_.slot(root, round), bytes_at(data, at), n);
    arena_.publish(op, round);
    // Everybody looks at everybody's header once; after that only the root is waited for.
    if (at == 0)
      arena_.await_all_published(op, round, true);
    else
      arena_.await(op, root, Arena::Phase::published, round);
    if (rank() != root) copy_bytes(bytes_at(data, at), arena_.slot(root, round), n);
    at += n;
  } while (at < bytes);
}

void HostTier::all_gather(const Op& op, const std::vector<MutableBlock>& blocks) {
  std::size_t longest = 0;
  for (const MutableBlock& block : blocks) longest = std::max(longest, block.bytes);
  std::size_t at = 0;
  do {
    const auto piece = [&](const MutableBlock& block) {
      return block.bytes > at ? std::min(block.bytes - at, arena_.slot_bytes()) : 0;
    };
    const std::uint64_t round = arena_.begin(op);
    const MutableBlock& mine = blocks[static_cast<std::size_t>(rank())];
    if (piece(mine) > 0) copy_bytes(arena_.slot(rank(), round), bytes_at(mine.data, at), piece(mine));
    arena_.publish(op, round);
    arena_.await_all_published(op, round, at == 0);
    for (int k = 1; k < size(); ++k) {
      const int r = (rank() + k) % size();
      const MutableBlock& theirs = blocks[static_cast<std::size_t>(r)];
      if (piece(theirs) > 0) copy_bytes(bytes_at(theirs.data, at), arena_.slot(r, round), piece(theirs));
    }
    at += arena_.slot_bytes();
  } while (at < longest);
}

void HostTier::reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  std::size_t longest = 0;
  for (const Block& block : blocks) longest = std::max(longest, block.count);
  // A slot is cut into one lane for each receiver.
  const std::size_t lane = arena_.slot_bytes() / static_cast<std::size_t>(size()) / 64 * 64;
  const std::size_t step = lane / width;
  std::size_t at = 0;
  do {
    const auto piece = [&](int r) {
      const std::size_t count = blocks[static_cast<std::size_t>(r)].count;
      return count > at ? std::min(count - at, step) : 0;
    };
    const std::uint64_t round = arena_.begin(op);
    for (int r = 0; r < size(); ++r)
      if (r != rank() && piece(r) > 0)
        copy_bytes(arena_.slot(rank(), round) + static_cast<std::size_t>(r) * lane,
                   bytes_at(blocks[static_cast<std::size_t>(r)].data, at * width), piece(r) * width);
    arena_.publish(op, round);
    arena_.await_all_published(op, round, at == 0);
    if (piece(rank()) > 0) {
      for (int r = 0; r < size(); ++r)
        sources_[static_cast<std::size_t>(r)] = r == rank()
                                                    ? bytes_at(blocks[static_cast<std::size_t>(r)].data, at * width)
                                                    : arena_.slot(r, round) + static_cast<std::size_t>(rank()) * lane;
      reduce_into(bytes_at(out, at * size_of(reduction.out)), sources_.data(), size(), piece(rank()), reduction);
    }
    at += step;
  } while (at < longest);
}

void HostTier::all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  if (count * width <= one_shot_bytes_) return one_shot(op, in, out, count, reduction);
  const std::size_t step = arena_.slot_bytes() / width;
  for (std::size_t at = 0; at < count; at += step)
    all_reduce_chunk(op, bytes_at(in, at * width), bytes_at(out, at * width), std::min(step, count - at), reduction,
                     at == 0);
}

void HostTier::one_shot(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::uint64_t round = arena_.begin(op);
  copy_bytes(arena_.slot(rank(), round), in, count * size_of(reduction.in));
  arena_.publish(op, round);
  arena_.await_all_published(op, round, true);
  if (count == 0) return;
  for (int r = 0; r < size(); ++r) sources_[static_cast<std::size_t>(r)] = r == rank() ? in : arena_.slot(r, round);
  reduce_into(out, sources_.data(), size(), count, reduction);
}

// The part this rank sums never enters its slot as input, so the slot has room for the sum in the same place.
void HostTier::all_reduce_chunk(const Op& op, const std::byte* in, std::byte* out, std::size_t count,
                                const Reduction& reduction, bool first) {
  const std::size_t width = size_of(reduction.in);
  const Part own = part_of(count, size(), rank());
  const std::size_t own_end = own.first + own.count;
  const std::uint64_t round = arena_.begin(op);
  std::byte* mine = arena_.slot(rank(), round);
  copy_bytes(mine, in, own.first * width);
  copy_bytes(mine + own_end * width, in + own_end * width, (count - own_end) * width);
  arena_.publish(op, round);
  arena_.await_all_published(op, round, first);
  if (own.count > 0) {
    for (int r = 0; r < size(); ++r)
      sources_[static_cast<std::size_t>(r)] = (r == rank() ? in : arena_.slot(r, round)) + own.first * width;
    reduce_into(mine + own.first * width, sources_.data(), size(), own.count, reduction);
  }
  arena_.signal_reduced(round);
  copy_bytes(out + own.first * width, mine + own.first * width, own.count * width);
  for (int k = 1; k < size(); ++k) {
    const int r = (rank() + k) % size();
    const Part part = part_of(count, size(), r);
    if (part.count == 0) continue;
    arena_.await(op, r, Arena::Phase::reduced, round);
    copy_bytes(out + part.first * width, arena_.slot(r, round) + part.first * width, part.count * width);
  }
}

}  // namespace smddp
