// Collectives over hosts with several ranks each: inside the host over one tier, between hosts over another.
//
// The second tier is a rail: this rank and the ranks with its local rank on the other hosts. L ranks a host make L
// rails, and each carries 1/L of the bytes; what crosses the network is that of one rank a host (2(M-1)/M B for an
// all-reduce over M hosts) and not of all M x L.
//
// A large message goes block by block: while one is on the wire, the next is summed inside the host and the one before
// spread in it. Waits for ranks of this host keep the wire moving (Arena::while_waiting): without that, ranks of two
// hosts that wait for each other's neighbours would never end.
//
// Sums run in rank order inside each host, then in the rail's order (net_tier.hpp); f16 and bf16 partial sums cross the
// network as f32.
#pragma once

#include <memory>
#include <vector>

#include "collective/net_tier.hpp"
#include "collective/tier.hpp"
#include "smddp/topology.hpp"

namespace smddp {

class Hierarchy final : public Tier {
 public:
  /// @param local ranks of this host. @param rail see above, in host order.
  Hierarchy(const Topology& topology, std::unique_ptr<Tier> local, std::unique_ptr<NetTier> rail);

  int rank() const override { return topology_.rank; }
  int size() const override { return topology_.size; }
  void barrier(const Op& op) override;
  void broadcast(const Op& op, void* data, std::size_t bytes, int root) override;
  void all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) override;
  void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) override;
  void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) override;
  Tier& between_hosts() override { return *rail_; }

 private:
  /// Blocks that are summed in the host before the first one's results are waited for.
  static constexpr std::size_t kAhead = 2;
  static_assert(kAhead < ReducePipe::kLeastDepth, "a block is gathered before its memory is needed again");

  /// Bytes of a block of a message of `bytes`, which is moved or summed.
  std::size_t step_of(std::size_t bytes) const;
  std::size_t summed_step_of(std::size_t bytes) const;
  void all_reduce_small(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void reduce_block(const Op& op, ReducePipe& pipe, std::size_t turn, const std::byte* in, std::byte* out,
                    std::size_t count, const Reduction& reduction);
  void gather_block(const Op& op, ReducePipe& pipe, std::size_t turn, std::size_t step, void* out, std::size_t count,
                    std::size_t width);

  Topology topology_;
  std::unique_ptr<Tier> local_;
  std::unique_ptr<NetTier> rail_;
  std::vector<Scratch> partials_;
};

}  // namespace smddp
