// The ways of NetTier in which small messages go by way of other ranks: log2 n messages of each rank instead of n-1.
// All of them meet in the same order, so that ranks which called different operations find that out in the step in
// which they meet, and tell the rest.
#include <algorithm>
#include <utility>

#include "collective/net_tier.hpp"
#include "memory.hpp"

namespace smddp {

// With what was heard in the steps before.
void NetTier::swap_headers(const Op& op, int to, int from) {
  OpHeader& theirs = headers_[static_cast<std::size_t>(from)];
  announce(op);
  wire_.send(global(to), &announced_, sizeof(OpHeader));
  wire_.recv(global(from), &theirs, sizeof(OpHeader), [this, &op, &theirs, from] { hear(op, theirs, from); });
}

// Where a power of two of ranks meet, each time with the partner of double_up(), so that ranks of which some relay and
// some double, since their types differ, find that out in the step in which they meet. Else along a ring: Bruck, Ho,
// Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems",
// IEEE TPDS 1997, section 3. Either way ranks that called different operations are found wherever they are.
NetTier::Hop NetTier::hop(int distance) const {
  if (!power_of_two()) return {after(size() - distance), after(distance), me_, std::min(distance, size() - distance)};
  const int partner = me_ ^ distance;
  return {partner, partner, me_ & -distance, distance};
}

void NetTier::relay(const Op& op, const std::vector<MutableBlock>& blocks, Headers headers) {
  for (int distance = 1; distance < size(); distance *= 2) {
    const Hop now = hop(distance);
    const int first_of_theirs = power_of_two() ? now.from & -distance : now.from;
    if (headers == Headers::swapped) swap_headers(op, now.to, now.from);
    for (int k = 0; k < now.blocks; ++k) {
      const MutableBlock& sent = blocks[static_cast<std::size_t>((now.first + k) % size())];
      const MutableBlock& received = blocks[static_cast<std::size_t>((first_of_theirs + k) % size())];
      wire_.send(global(now.to), sent.data, sent.bytes);
      wire_.recv(global(now.from), received.data, received.bytes);
    }
    finish(op);
  }
}

// A binomial tree in the same steps: whoever has the data after k steps is at most 2^k away from the root, in the
// numbers of hop().
void NetTier::relay_broadcast(const Op& op, void* data, std::size_t bytes, int root) {
  const int away = power_of_two() ? me_ ^ root : (root - me_ + size()) % size();
  for (int distance = 1; distance < size(); distance *= 2) {
    const Hop now = hop(distance);
    swap_headers(op, now.to, now.from);
    if (away < distance && away + distance < size()) wire_.send(global(now.to), data, bytes);
    if (away >= distance && away < 2 * distance) wire_.recv(global(now.from), data, bytes);
    finish(op);
  }
}

// Partial sums travel as wide as they are: types that are summed in wider ones would gain nothing.
bool NetTier::can_double(const Reduction& reduction) const {
  return settings_.relay && power_of_two() && size() > 2 && can_reduce(reduction.in, reduction.op) &&
         accumulator_of(reduction.in, reduction.op) == reduction.in;
}

// What double_up() and halve() make in all steps but the last: neither divided nor rounded.
Reduction NetTier::partial_of(const Reduction& reduction) { return {reduction.op, reduction.in, reduction.in, 1}; }

// Lower ranks' sum first, on both sides: the bits are those of reduce_in_pairs().
void NetTier::add_partners(void* to, int partner, const void* mine, const void* theirs, std::size_t count,
                           const Reduction& reduction) const {
  const void* const sources[] = {partner < me_ ? theirs : mine, partner < me_ ? mine : theirs};
  if (count > 0) reduce_into(to, sources, 2, count, reduction);
}

// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, section
// 4.4.
void NetTier::double_up(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t bytes = count * size_of(reduction.in);
  std::byte* const theirs = incoming_.at_least(2 * bytes);
  std::byte* const partial = theirs + bytes;
  const void* mine = in;
  for (int distance = 1; distance < size(); distance *= 2) {
    const int partner = me_ ^ distance;
    swap_headers(op, partner, partner);
    wire_.send(global(partner), mine, bytes);
    wire_.recv(global(partner), theirs, bytes);
    finish(op);
    const bool last = 2 * distance == size();
    add_partners(last ? out : partial, partner, mine, theirs, count, last ? reduction : partial_of(reduction));
    mine = partial;
  }
}

// Recursive halving (the same, section 4.3), nearest first: in the step of distance d, a rank hands over the blocks of
// ranks that are the partner's in the bits up to d, and sums those that are its own.
void NetTier::halve(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  std::size_t total = 0;
  for (const Block& block : blocks) total += block.count * width;
  std::byte* const theirs = incoming_.at_least(2 * total);
  for (int distance = 1; distance < size(); distance *= 2) {
    const int partner = me_ ^ distance;
    const bool first = distance == 1;
    const bool last = 2 * distance == size();
    // body(r, block r, where it is among those of all ranks, in bytes) for each block of those of `rank` in this step.
    const auto for_blocks_of = [&](int rank, const auto& body) {
      std::size_t at = 0;
      for (int r = 0; r < size(); at += blocks[static_cast<std::size_t>(r++)].count * width)
        if ((r & (2 * distance - 1)) == (rank & (2 * distance - 1))) body(blocks[static_cast<std::size_t>(r)], at);
    };
    const auto sum_of = [&](const Block& block, std::size_t at) { return first ? block.data : theirs + total + at; };
    swap_headers(op, partner, partner);
    for_blocks_of(partner, [&](const Block& block, std::size_t at) {
      wire_.send(global(partner), sum_of(block, at), block.count * width);
    });
    for_blocks_of(me_, [&](const Block& block, std::size_t at) {
      wire_.recv(global(partner), theirs + at, block.count * width);
    });
    finish(op);
    for_blocks_of(me_, [&](const Block& block, std::size_t at) {
      add_partners(last ? out : theirs + total + at, partner, sum_of(block, at), theirs + at, block.count,
                   last ? reduction : partial_of(reduction));
    });
  }
}

// In place is safe: when a step ends, what it sent has left.
void NetTier::halve_and_gather(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  std::vector<Block> shards;
  std::vector<MutableBlock> results;
  for (int r = 0; r < size(); ++r) {
    const Part part = part_of(count, size(), r);
    shards.push_back({bytes_at(in, part.first * size_of(reduction.in)), part.count});
    results.push_back({bytes_at(out, part.first * size_of(reduction.out)), part.count * size_of(reduction.out)});
  }
  halve(op, shards, results[static_cast<std::size_t>(me_)].data, reduction);
  relay(op, results, Headers::known);
}

}  // namespace smddp
