// A tier: a set of ranks that reach one another over one transport, and the collectives among them.
//
// HostTier works over shared memory, NetTier over TCP, Hierarchy joins one of each. Ranks are numbered within the tier.
// Every method is called by all ranks of the tier with the same operation, and compares the operation's header with
// theirs before any data is used.
#pragma once

#include <memory>
#include <vector>

#include "kernel/reduce.hpp"
#include "op.hpp"

namespace smddp {

class Tier {
 public:
  virtual ~Tier() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Returns when every rank of the tier has called it.
  virtual void barrier(const Op& op) = 0;

  /// Copies `bytes` bytes from rank `root` to all.
  virtual void broadcast(const Op& op, void* data, std::size_t bytes, int root) = 0;

  /// Fills blocks[r] with rank r's `in`, which is as long as blocks[r] there, and blocks[rank()] or disjoint from all.
  /// Sizes may differ between blocks, not between ranks.
  virtual void all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) = 0;

  /// out = reduction over ranks of blocks[rank()], in an order that the tier states. Sizes may differ between blocks,
  /// not between ranks. `out` may be this rank's block if the types have one size.
  virtual void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out,
                              const Reduction& reduction) = 0;

  /// out[i] = reduction over ranks of in[i], in the same order. `in` and `out` are the same (types of one size) or
  /// disjoint.
  virtual void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) = 0;

  /// Of a tier with several ranks a host, the part that joins hosts: this rank's rail. For callers that do the host's
  /// part themselves.
  virtual Tier& between_hosts() { return *this; }
};

/// body(r) for each other rank of a tier, from the one after `rank` on.
template <class Body>
void for_others(int rank, int size, const Body& body) {
  for (int k = 1; k < size; ++k) body((rank + k) % size);
}

/// Memory that grows to the largest request and is not cleared.
class Scratch {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace smddp
