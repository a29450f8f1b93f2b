#include "rails.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

#include "device.hpp"
#include "smddp/errors.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A copy to the host takes less than this if nothing else is under way.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kNap{20};
// How often a rank that waits for its neighbours asks whether they live.
constexpr Milliseconds kLookInterval{20};

// NCCL has no other types that the core has too. Bools are bytes there and logic here.
bool nccl_has(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

bool nccl_has(ReduceOp op, at::ScalarType type) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::max:
      return true;
    case ReduceOp::avg:
      return at::isFloatingType(type);
    default:
      return false;
  }
}

c10d::ReduceOp::RedOpType nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace

Rails::Rails(std::shared_ptr<Communicator> communicator, c10::intrusive_ptr<BackendBase> local)
    : communicator_(std::move(communicator)),
      local_(std::move(local)),
      local_rank_(communicator_->topology().local_rank),
      local_size_(communicator_->topology().local_size()) {}

bool Rails::can_reduce(TensorList tensors, const c10d::ReduceOp& op) {
  if (!torch_binding::can_reduce(tensors, op)) return false;
  for (const at::Tensor& tensor : tensors)
    if (!nccl_has(tensor.scalar_type()) || !nccl_has(reduce_op(op, tensor.scalar_type())->op, tensor.scalar_type()))
      return false;
  return true;
}

void Rails::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Residuals& residuals, Milliseconds timeout) {
  const Reduce reduce = *reduce_op(op, tensor.scalar_type());
  const std::int64_t shard = (tensor.numel() + local_size_ - 1) / local_size_;
  std::shared_ptr<Residual> residual;
  if (communicator_->keeps_residuals(static_cast<std::size_t>(shard) * tensor.element_size()))
    residual = residuals.of(tensor);
  const bool in_place = !reduce.factor.defined() && shard * local_size_ == tensor.numel() && tensor.is_contiguous() &&
                        !tensor.is_conj() && !tensor.is_neg();
  if (in_place) return reduce_shards(tensor.view({-1}), nccl_op(reduce.op), residual, timeout);
  // What is behind the last element is nobody's, and goes along.
  const at::Tensor buffer = at::empty({shard * local_size_}, tensor.options().memory_format(c10::nullopt));
  const at::Tensor run = buffer.narrow(0, 0, tensor.numel()).view(tensor.sizes());
  run.copy_(tensor);
  if (reduce.factor.defined()) run.mul_(reduce.factor.to(run.options()));
  reduce_shards(buffer, nccl_op(reduce.op), residual, timeout);
  tensor.copy_(run);
}

void Rails::reduce_shards(at::Tensor buffer, const c10d::ReduceOp& op, const std::shared_ptr<Residual>& residual,
                          Milliseconds timeout) {
  const std::int64_t count = buffer.numel() / local_size_;
  at::Tensor shard = buffer.narrow(0, local_rank_ * count, count);
  if (!local_ || count == 0) return exchange(shard, op, residual.get(), timeout);
  try {
    // NCCL's waits are the stream's, not the host's.
    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = op;
    scatter.timeout = timeout;
    local_->_reduce_scatter_base(shard, buffer, scatter)->wait();
    exchange(shard, op, residual.get(), timeout);
    c10d::AllgatherOptions gather;
    gather.timeout = timeout;
    local_->_allgather_base(buffer, shard, gather)->wait();
  } catch (...) {
    abort();
    throw;
  }
}

void Rails::exchange(const at::Tensor& shard, const c10d::ReduceOp& op, Residual* residual, Milliseconds timeout) {
  const at::Tensor staging = empty_staging(shard);
  staging.copy_(shard, /*non_blocking=*/true);
  wait_for_copy(shard.device(), timeout);
  communicator_->all_reduce_between_hosts(staging.data_ptr(), static_cast<std::size_t>(shard.numel()),
                                          *arithmetic_type(shard.scalar_type()), reduce_op(op, shard.scalar_type())->op,
                                          timeout, residual);
  shard.copy_(staging, /*non_blocking=*/true);
}

// What the copy waits for, NCCL inside the host, would wait for a rank that is gone for ever: not this thread with it.
void Rails::wait_for_copy(c10::Device device, Milliseconds timeout) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  const auto start = Clock::now();
  auto next_look = start + kLookInterval;
  while (!guard.queryStream(stream)) {
    const auto now = Clock::now();
    if (now > start + kSpin) std::this_thread::sleep_for(kNap);
    if (now < next_look) continue;
    next_look = now + kLookInterval;
    try {
      communicator_->check_alive("all_reduce", 0);
      if (now - start > timeout)
        throw TimeoutError("all_reduce: the sum inside the host (NCCL) is not done after " +
                           std::to_string(timeout.count()) + " ms: a rank of this host is missing, or its GPU is busy");
    } catch (const Error& error) {
      communicator_->fail(error);
    }
  }
}

void Rails::abort() {
  if (local_) abort_of(*local_, 0);
}

void Rails::shutdown() {
  if (local_) shutdown_of(*local_, 0);
}

}  // namespace smddp::torch_binding
