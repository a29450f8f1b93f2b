// All-reduces of tensors on GPUs where every rank has a GPU of its own, on several hosts.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <string>

#include "compat.hpp"
#include "residuals.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// Herring's hierarchy (Thangakrishnan et al., SC'20) with GPUs: NCCL sums inside the host and leaves each rank a
/// shard, shards go through pinned memory and the core's exchange between hosts, and NCCL spreads them in the host
/// again.
///
/// With L ranks a host and M hosts, a tensor of B bytes takes each GPU 2(L-1)/L B over NVLink or PCIe to its
/// neighbours, B/L to host memory and as much back, and each rank's rail 2(M-1)/M B/L over the network.
class Rails {
 public:
  /// @param local NCCL's group of this host's ranks, in rank order; null where each host has one rank.
  Rails(std::shared_ptr<Communicator> communicator, c10::intrusive_ptr<BackendBase> local);

  /// True when both NCCL and the core can reduce these.
  static bool can_reduce(at::TensorList tensors, const c10d::ReduceOp& op);

  /// Sums `tensor` over all ranks, in place, on the current stream of its device. Returns when the result is enqueued.
  /// Of 16-bit types the sum of a host is rounded, and the sum of all once more; an average is one of averages.
  /// @throws what ended the group; NCCL's group of the host is aborted then.
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Residuals& residuals,
                  std::chrono::milliseconds timeout);

  /// Ends what NCCL still does inside the host.
  void abort();
  void shutdown();

 private:
  struct Message {
    c10d::ReduceOp op;
    bool keeps_residual;  ///< On all ranks alike; `residual` may be missing on some.
    std::shared_ptr<Residual> residual;
    std::chrono::milliseconds timeout;
  };
  void reduce_shards(at::Tensor buffer, const Message& message);
  void exchange(const at::Tensor& shard, const Message& message);

  const std::shared_ptr<Communicator> communicator_;
  const c10::intrusive_ptr<BackendBase> local_;
  const int local_rank_;
  const int local_size_;
};

}  // namespace smddp::torch_binding
