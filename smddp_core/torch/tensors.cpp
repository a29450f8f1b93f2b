#include "tensors.hpp"

#include <algorithm>
#include <utility>

#include "device.hpp"

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
    case at::kBool:  // 0 or 1
      return DType::u8;
    case at::kChar:
      return DType::i8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kComplexFloat:
      return DType::c64;
    case at::kComplexDouble:
      return DType::c128;
    default:
      return std::nullopt;
  }
}

std::optional<Reduce> reduce_op(const c10d::ReduceOp& op, at::ScalarType type) {
  const bool logical = type == at::kBool;
  switch (kind_of(op, 0)) {
    case c10d::ReduceOp::SUM:
      // As torch adds bools: or. gloo adds bytes, and leaves a bool of 2.
      return Reduce{logical ? ReduceOp::max : ReduceOp::sum, {}};
    case c10d::ReduceOp::AVG:
      return logical ? std::nullopt : std::optional<Reduce>(Reduce{ReduceOp::avg, {}});
    case c10d::ReduceOp::PRODUCT:
      return Reduce{logical ? ReduceOp::min : ReduceOp::product, {}};
    case c10d::ReduceOp::MIN:
      return Reduce{ReduceOp::min, {}};
    case c10d::ReduceOp::MAX:
      return Reduce{ReduceOp::max, {}};
    case c10d::ReduceOp::BAND:
      return Reduce{ReduceOp::band, {}};
    case c10d::ReduceOp::BOR:
      return Reduce{ReduceOp::bor, {}};
    case c10d::ReduceOp::BXOR:
      return Reduce{ReduceOp::bxor, {}};
#if SMDDP_TORCH_AT_LEAST(2, 0)
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (!factor || !at::isFloatingType(type)) return std::nullopt;
      return Reduce{ReduceOp::sum, factor->tensor_factor.defined()
                                       ? factor->tensor_factor
                                       : at::scalar_tensor(factor->double_factor, at::kDouble)};
    }
#endif
    default:
      return std::nullopt;
  }
}

bool can_move(TensorList tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) return false;
  return true;
}

bool can_reduce(TensorList tensors, const c10d::ReduceOp& op) {
  if (!can_move(tensors)) return false;
  for (const at::Tensor& tensor : tensors) {
    const auto type = arithmetic_type(tensor.scalar_type());
    const auto reduce = reduce_op(op, tensor.scalar_type());
    if (!type || !reduce || !smddp::can_reduce(*type, reduce->op)) return false;
  }
  return true;
}

Tensors join(TensorList a, TensorList b) {
  Tensors all = a.vec();
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

void require_one_device(TensorList inputs, TensorList outputs) {
  const auto on_host = [](const at::Tensor& tensor) { return tensor.device().is_cpu(); };
  if (std::all_of(inputs.begin(), inputs.end(), on_host) && std::all_of(outputs.begin(), outputs.end(), on_host))
    return;
  common_device(join(inputs, outputs));
}

void require_alike(TensorList tensors, std::size_t count, const at::Tensor& like, const char* operation) {
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

bool share_memory(TensorList tensors) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  ranges.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
    ranges.emplace_back(begin, begin + static_cast<std::size_t>(last + 1) * tensor.element_size());
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) return true;
  return false;
}

MoveType move_type(at::ScalarType type) {
  if (type == at::kBool) return {DType::bytes, static_cast<std::uint32_t>(type)};
  if (const auto known = arithmetic_type(type)) return {*known, 0};
  return {DType::bytes, static_cast<std::uint32_t>(type)};
}

bool is_one_run(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

at::Tensor one_run(const at::Tensor& tensor, const at::Tensor& factor) {
  if (factor.defined()) return (tensor * factor.to(tensor.options())).contiguous();
  return is_one_run(tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

Flat::Flat(const at::Tensor& tensor, bool read) : tensor_(&tensor) {
  const bool on_host = tensor.device().is_cpu();
  if (on_host && is_one_run(tensor)) return;
  copy_ = on_host ? at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous))
                  : empty_staging(tensor);
  if (!read) return;
  copy_.copy_(tensor, /*non_blocking=*/!on_host);
  arriving_ = !on_host;
}

Flat::Flat(const at::Tensor& tensor, const at::Tensor& factor) : tensor_(&tensor) {
  const at::Tensor product = tensor * factor.to(tensor.options());
  if (tensor.device().is_cpu()) {
    copy_ = product.contiguous();
    return;
  }
  copy_ = empty_staging(tensor);
  copy_.copy_(product, /*non_blocking=*/true);
  arriving_ = true;
}

void Flat::detach(bool read) {
  if (copy_.defined()) return;
  copy_ = read ? tensor_->clone(at::MemoryFormat::Contiguous) : at::empty_like(*tensor_);
}

void* Flat::data() {
  if (arriving_) synchronize_current_stream(tensor_->device());
  arriving_ = false;
  return tensor().data_ptr();
}

void Flat::finish() {
  if (copy_.defined()) tensor_->copy_(copy_, /*non_blocking=*/!tensor_->device().is_cpu());
}

}  // namespace smddp::torch_binding
