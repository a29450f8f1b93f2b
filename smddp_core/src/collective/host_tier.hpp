// Collectives of the ranks of one host over shared memory.
//
// Steps (waits for other ranks) and bytes copied into or out of shared memory by each of n ranks, for a message of B
// bytes:
//   all_reduce, small   1 step    B in, (n-1)B read            everybody sums everything
//   all_reduce, large   2 steps   B in, 2(n-1)/n B read        each chunk: sum own part, publish it, copy the others'
//   sums reduce_scatter      1 step    (n-1)/n B in, (n-1)/n B read all_gather          1 step    B/n in, (n-1)/n B
//   read broadcast           1 step    B in at the root, B read elsewhere
#pragma once

#include "collective/tier.hpp"
#include "transport/arena.hpp"

namespace smddp {

class HostTier final : public Tier {
 public:
  /// @param one_shot_bytes see Env::one_shot_bytes.
  HostTier(Arena arena, std::size_t one_shot_bytes);

  int rank() const override { return arena_.local_rank(); }
  int size() const override { return arena_.size(); }
  void barrier(const Op& op) override;
  void broadcast(const Op& op, void* data, std::size_t bytes, int root) override;
  void all_gather(const Op& op, const std::vector<MutableBlock>& blocks) override;
  void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) override;
  /// `reduction.in` and `.out` must be one type here.
  void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) override;

 private:
  void one_shot(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void all_reduce_chunk(const Op& op, const std::byte* in, std::byte* out, std::size_t count,
                        const Reduction& reduction, bool first);

  Arena arena_;
  std::size_t one_shot_bytes_;
  std::vector<const void*> sources_;
};

}  // namespace smddp
