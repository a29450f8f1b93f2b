#include "tensors.hpp"

namespace smddp::torch_binding {

std::optional<DType> arithmetic_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kByte:
      return DType::u8;
    case at::kChar:
      return DType::i8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    default:
      return std::nullopt;
  }
}

bool can_move(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) return false;
  return true;
}

bool can_reduce(const Tensors& tensors, const c10d::ReduceOp& op) {
  if (!can_move(tensors) || !reduce_op(op)) return false;
  for (const at::Tensor& tensor : tensors)
    if (!arithmetic_type(tensor.scalar_type())) return false;
  return true;
}

void require_cpu(const Tensors& tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.device().is_cpu(), "smddp: ", operation, " of a tensor on ", tensor.device(),
        ": this version moves CPU tensors only; use init_process_group(backend=\"cpu:smddp,cuda:nccl\") for both");
}

void require_alike(const Tensors& tensors, std::size_t count, const at::Tensor& like, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == count, "smddp: ", operation, ": expected ", count, " tensors, one a rank, got ",
                    tensors.size());
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(),
                      "smddp: ", operation, ": tensors must have one type and size: ", tensor.scalar_type(), " ",
                      tensor.sizes(), " beside ", like.scalar_type(), " ", like.sizes());
}

void require_multiple(const at::Tensor& whole, const at::Tensor& part, int parts, const char* operation) {
  TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * parts,
                    "smddp: ", operation, ": ", whole.scalar_type(), " ", whole.sizes(), " is not ", parts, " times ",
                    part.scalar_type(), " ", part.sizes());
}

MoveType move_type(at::ScalarType type) {
  if (const auto known = arithmetic_type(type)) return {*known, 0};
  return {DType::bytes, static_cast<std::uint32_t>(type)};
}

Flat::Flat(at::Tensor tensor, bool read) : tensor_(std::move(tensor)) {
  if (tensor_.is_contiguous() && !tensor_.is_conj() && !tensor_.is_neg()) {
    flat_ = tensor_;
    return;
  }
  flat_ = at::empty(tensor_.sizes(), tensor_.options().memory_format(at::MemoryFormat::Contiguous));
  if (read) flat_.copy_(tensor_);
}

void Flat::finish() {
  if (!flat_.is_same(tensor_)) tensor_.copy_(flat_);
}

}  // namespace smddp::torch_binding
