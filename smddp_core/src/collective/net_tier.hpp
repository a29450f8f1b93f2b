// Collectives over TCP by direct exchange, after Herring (Thangakrishnan et al., SC'20): a message is cut into one
// shard a rank, shard i goes straight to rank i, which reduces it in rank order and sends the result straight back. One
// hop each way and the same number of bytes for everybody, without a ring's chain of n-1 steps.
//
// Steps (one-way trips) and bytes sent by each of n ranks, for a message of B bytes:
//   all_reduce      2 steps   2(n-1)/n B
//   reduce_scatter  1 step    (n-1)/n B
//   all_gather      1 step    (n-1)/n B
//   broadcast       1 step    (n-1) B at the root if B is small, else 2 steps, (n-1)/n B or (for the root) twice that
// Every operation also sends a header of 32 bytes to each peer, in front of the first data.
#pragma once

#include "collective/tier.hpp"
#include "transport/wire.hpp"

namespace smddp {

class NetTier final : public Tier {
 public:
  /// @param members ranks of the group in this tier, in tier order. @param rank this rank's index in `members`.
  /// @param wire connected to all members; outlives the tier. @param block_bytes see Env::net_block_bytes.
  NetTier(Wire& wire, std::vector<int> members, int rank, std::size_t block_bytes);

  int rank() const override { return me_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void barrier(const Op& op) override;
  void broadcast(const Op& op, void* data, std::size_t bytes, int root) override;
  void all_gather(const Op& op, const std::vector<MutableBlock>& blocks) override;
  void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) override;
  void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) override;

 private:
  /// Where one shard is gathered from all ranks and reduced, piece by piece as it arrives.
  struct Collect {
    const std::byte* own = nullptr;  ///< This rank's contribution.
    std::byte* out = nullptr;
    std::size_t count = 0;
    bool send_back = false;  ///< Send every finished piece to all peers.
  };

  int global(int r) const { return members_[static_cast<std::size_t>(r)]; }
  /// The k-th peer after this rank, so that not everyone starts with the same one. k in 1 .. size-1.
  int after(int k) const { return (me_ + k) % size(); }
  void post_headers(const Op& op);
  void post_collect(const Collect& collect, const Reduction& reduction);
  void reduce_piece(const Collect& collect, const Reduction& reduction, std::size_t at, std::size_t count);

  Wire& wire_;
  std::vector<int> members_;
  int me_;
  std::size_t block_bytes_;
  Scratch incoming_;
  std::vector<OpHeader> headers_;
  std::vector<int> arrived_;
  std::vector<const void*> sources_;
};

}  // namespace smddp
