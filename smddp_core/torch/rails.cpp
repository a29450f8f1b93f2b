#include "rails.hpp"

#include <utility>

#include "staging.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

using Milliseconds = std::chrono::milliseconds;

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

c10d::ReduceOp nccl_op(ReduceOp op) {
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
  const std::int64_t rest = shard * local_size_ - tensor.numel();
  Message message{nccl_op(reduce.op), false, nullptr, timeout};
  message.keeps_residual = communicator_->keeps_residuals(static_cast<std::size_t>(shard) * tensor.dtype().itemsize());
  if (message.keeps_residual) message.residual = residuals.of(tensor);
  const at::Tensor run = one_run(tensor, reduce.factor);
  if (rest == 0) {
    reduce_shards(run.view({-1}), message);
    if (!run.is_same(tensor)) tensor.copy_(run);
    return;
  }
  // What is behind the last element is nobody's, and goes along.
  const at::Tensor buffer = at::empty({shard * local_size_}, run.options().memory_format(at::MemoryFormat::Contiguous));
  const at::Tensor own = buffer.narrow(0, 0, tensor.numel());
  own.copy_(run.view({-1}));
  reduce_shards(buffer, message);
  tensor.copy_(own.view(tensor.sizes()));
}

void Rails::reduce_shards(at::Tensor buffer, const Message& message) {
  const std::int64_t count = buffer.numel() / local_size_;
  at::Tensor shard = buffer.narrow(0, local_rank_ * count, count);
  if (!local_ || count == 0) return exchange(shard, message);
  try {
    // NCCL's waits are the stream's, not the host's.
    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = message.op;
    scatter.timeout = message.timeout;
    local_->_reduce_scatter_base(shard, buffer, scatter)->wait();
    exchange(shard, message);
    c10d::AllgatherOptions gather;
    gather.timeout = message.timeout;
    local_->_allgather_base(buffer, shard, gather)->wait();
  } catch (...) {
    abort();
    throw;
  }
}

void Rails::exchange(const at::Tensor& shard, const Message& message) {
  const DType type = *arithmetic_type(shard.scalar_type());
  const ReduceOp sum = reduce_op(message.op, shard.scalar_type())->op;
  all_reduce_staged(shard, *communicator_, message.keeps_residual, message.timeout,
                    [&](void* data, std::int64_t count, std::uint32_t tag) {
                      communicator_->all_reduce_between_hosts(data, static_cast<std::size_t>(count), type, sum,
                                                              message.timeout, message.residual.get(), tag);
                    });
}

void Rails::abort() {
  if (local_) abort_of(*local_, 0);
}

void Rails::shutdown() {
  if (local_) shutdown_of(*local_, 0);
}

}  // namespace smddp::torch_binding
