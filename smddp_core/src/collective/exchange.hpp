// Direct exchange, block after block: a block is cut into one shard a rank, shard r goes straight to rank r, which
// reduces it and, for an all-reduce, sends the result straight back (Herring, SC'20).
//
// Several blocks are under way at once, so that the link never waits for a sum: while the results of block k travel,
// the shards of block k+1 do too. There are no tags on the wire, hence one fixed order of what each rank sends to each:
//
//     shards 0 | shards 1 | results 0 | shards 2 | results 1 | ... | shards n | results n-1 | results n
//
// Results leave piece by piece as they become ready; what stands behind them waits.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "smddp/types.hpp"
#include "transport/wire.hpp"

namespace smddp {

/// One block, by the rank of the tier that reduces each part. All memory must stay until the block is released().
struct Shards {
  std::vector<Block> in;              ///< in[r]: this rank's contribution to what rank r reduces.
  void* own = nullptr;                ///< Where this rank's shard is reduced to; may be in[me].
  std::vector<MutableBlock> results;  ///< results[r].data: where rank r's shard goes; empty for a reduce-scatter.
};

class Exchange {
 public:
  /// Reduces `count` elements from element `at` of this rank's shard: sources[r] is rank r's contribution.
  using Reduce = std::function<void(void* out, const void* const* sources, std::size_t at, std::size_t count)>;

  /// Sizes of elements on the wire, and of the pieces in which shards travel and are reduced, in elements.
  struct Format {
    std::size_t in_width = 4;
    std::size_t out_width = 4;
    std::size_t piece = 65536;
  };

  /// @param members ranks of the group in the tier. @param me this rank's index in them. Both must outlive this.
  Exchange(Wire& wire, const std::vector<int>& members, int me, const Format& format);

  /// Posts the next block. @param incoming room for the contributions of all other ranks to this rank's shard; free
  /// again when the block is finished().
  void push(Shards shards, std::byte* incoming, Reduce reduce);

  /// Says that no block follows.
  void close();

  /// This rank's shard is reduced, and everybody's results (if any) have arrived: outputs may be read, and in an
  /// all-reduce inputs may change.
  bool finished(std::size_t block) const;

  /// Finished, and everything has left: inputs and outputs may change.
  bool released(std::size_t block) const;

 private:
  struct Active {
    Shards shards;
    std::byte* incoming = nullptr;
    Reduce reduce;
    std::vector<int> arrived;   // by piece of this rank's shard: contributions that are there
    std::size_t reduced = 0;    // pieces of this rank's shard
    std::size_t sent_back = 0;  // pieces of this rank's result that were posted
    std::size_t missing = 0;    // pieces of other ranks' results that have not arrived
    std::size_t leaving = 0;    // pieces that were posted and have not left
    bool results_due = false;   // the results have their place in the order
    bool results_posted = false;
  };
  struct Step {
    Active* block;
    bool results;  // else shards
  };

  int size() const { return static_cast<int>(members_.size()); }
  int global(int r) const { return members_[static_cast<std::size_t>(r)]; }
  /// The k-th peer after this rank, so that not everyone starts with the same one (incast). k in 1 .. size-1.
  int after(int k) const { return (me_ + k) % size(); }
  std::size_t pieces(std::size_t count) const { return (count + format_.piece - 1) / format_.piece; }
  std::size_t own_count(const Active& block) const { return block.shards.in[static_cast<std::size_t>(me_)].count; }

  bool finished(const Active& block) const;
  void expect_shards(Active& block);
  void expect_results(Active& block);
  void arrive(Active& block, std::size_t piece);
  void reduce_piece(Active& block, std::size_t piece);
  void send_shards(Active& block);
  bool send_results(Active& block);
  void pump();
  void retire();

  Wire& wire_;
  const std::vector<int>& members_;
  const int me_;
  const Format format_;
  std::deque<Active> blocks_;  // those not released
  std::size_t first_ = 0;      // number of blocks_.front()
  std::deque<Step> outbox_;
  std::vector<const void*> sources_;
};

}  // namespace smddp
