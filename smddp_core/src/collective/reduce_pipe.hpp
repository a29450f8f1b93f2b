// A reduction between hosts that is given block by block, several of them under way at once (exchange.hpp), in the
// group's own types or in a 16-bit format on the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collective/exchange.hpp"
#include "collective/tier.hpp"
#include "kernel/reduce.hpp"
#include "op.hpp"
#include "transport/wire.hpp"

namespace smddp {

/// How messages are cut and coded between hosts; equal on all ranks. See Env for the meaning of each.
struct NetSettings {
  std::size_t block_bytes = std::size_t{4} << 20;
  std::size_t shard_bytes = std::size_t{256} << 10;
  std::size_t piece_bytes = std::size_t{256} << 10;
  std::size_t one_shot_bytes = std::size_t{16} << 10;
  std::size_t try_bytes = std::size_t{1} << 20;
  bool relay = false;  // small messages by way of others
  std::size_t min_shard_bytes = 4096;
  DType wire = DType::f32;
  std::size_t wire_min_bytes = std::size_t{64} << 10;

  /// Bytes of a block that is summed by `ranks` ranks.
  std::size_t summed_block(int ranks) const {
    return std::min(block_bytes, shard_bytes * static_cast<std::size_t>(ranks));
  }
};

/// Memory of a pipe, kept from one operation to the next.
struct PipeMemory {
  std::vector<Scratch> incoming;
  std::vector<Scratch> encoded;
};

class ReducePipe {
 public:
  /// So many blocks may be under way at least: see depth_.
  static constexpr std::size_t kLeastDepth = 3;

  /// Posts nothing yet. @param op its header says whether all_reduce() or reduce_scatter() will be called. @param
  /// members see Exchange. @param total elements this rank will push in all.
  ReducePipe(Wire& wire, const std::vector<int>& members, int me, const Op& op, const Reduction& reduction,
             std::size_t total, const NetSettings& settings, PipeMemory& memory);

  /// out = reduction of `in` over the ranks. Same or disjoint (if the types have one size); both must stay until
  /// finish().
  void all_reduce(const void* in, void* out, std::size_t count);

  /// out = reduction over the ranks of in[me].
  void reduce_scatter(const std::vector<Block>& in, void* out);

  /// Says that no block follows: needed before the last one can finish.
  void close() { exchange_.close(); }

  /// Waits for the n-th block (from 0): its output is complete and its input may change. In order of n.
  void finish(std::size_t n);

  /// Waits for the rest, and until everything has left. After close().
  void finish_all();

 private:
  struct Decode {
    float* to = nullptr;
    const void* from = nullptr;
    std::size_t count = 0;
  };

  bool coded() const { return wire_type_ != reduction_.in; }
  Part shard(std::size_t count, int r) const;
  std::byte* room_for(std::size_t own_count);
  std::byte* encoded(const std::vector<Block>& in);
  Exchange::Reduce reducer(std::size_t own_count);
  void push(Shards shards);

  Wire& wire_;
  const int ranks_;
  const int me_;
  const Op& op_;
  const Reduction reduction_;
  const NetSettings& settings_;
  PipeMemory& memory_;
  const DType wire_type_;
  // Blocks that may be under way: push() waits until the one that came so many before is finished.
  const std::size_t depth_;
  Exchange exchange_;
  std::vector<Decode> decodes_;  // by block
  std::size_t finished_ = 0;
  std::size_t sent_at_ = 0;     // elements pushed so far: where the residual of the next block is
  std::size_t reduced_at_ = 0;  // the same for this rank's shards
};

/// The type float32 sums of `bytes` bytes travel in, under `settings`.
DType wire_type_of(const Reduction& reduction, std::size_t bytes, const NetSettings& settings);

}  // namespace smddp
