// From tensors to the core's plain memory: types, contiguous copies, checks of shapes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "compat.hpp"
#include "smddp/types.hpp"

namespace smddp::torch_binding {

using Tensors = std::vector<at::Tensor>;
using at::TensorList;

/// The core's type for arithmetic, if it has one.
std::optional<DType> arithmetic_type(at::ScalarType type);

/// A reduction as the core has it, and what it needs before.
struct Reduce {
  ReduceOp op;
  /// PREMUL_SUM: each rank's input is multiplied by this first. A tensor of one element, or undefined.
  at::Tensor factor;
};

/// The core's reduction of tensors of type `type`, if it has one.
std::optional<Reduce> reduce_op(const c10d::ReduceOp& op, at::ScalarType type);

/// True when the core can reduce these: dense, strided, of an arithmetic type, by `op`.
bool can_reduce(TensorList tensors, const c10d::ReduceOp& op);

/// True when the core can move these: dense and strided.
bool can_move(TensorList tensors);

/// Both, one after the other.
Tensors join(TensorList a, TensorList b);

/// Checks that all are on one device. @throws ValueError
void require_one_device(TensorList inputs, TensorList outputs);

/// Checks that there are `count` tensors, each with the type and number of elements of `like`.
void require_alike(TensorList tensors, std::size_t count, const at::Tensor& like, const char* operation);

/// Checks that `whole` has the type of `part` and `parts` times its elements.
void require_multiple(const at::Tensor& whole, const at::Tensor& part, int parts, const char* operation);

/// True where two of the tensors have, or may have, an element in memory together.
bool share_memory(TensorList tensors);

/// True when `mine`, this rank's part, has memory in common with one of `parts`, of `bytes` bytes each and one a rank,
/// other than being its own.
template <class Pointer>
bool is_entangled(const void* mine, const std::vector<Pointer>& parts, std::size_t bytes, int rank) {
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const std::uintptr_t begin = address(mine);
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::uintptr_t other = address(parts[r]);
    const bool own = r == static_cast<std::size_t>(rank) && other == begin;
    if (!own && begin < other + bytes && other < begin + bytes) return true;
  }
  return false;
}

/// Type and code under which the core compares the data of ranks when it only moves bytes.
struct MoveType {
  DType dtype;
  std::uint32_t tag;
};
MoveType move_type(at::ScalarType type);

/// True where the memory of `tensor` has its elements as they are, one behind the other.
bool is_one_run(const at::Tensor& tensor);

/// `tensor` times `factor` (if that is defined) as one run: itself where it is one, else a copy on its device.
at::Tensor one_run(const at::Tensor& tensor, const at::Tensor& factor);

/// The memory of a tensor as one run of elements on the host: its own if it is there and contiguous, else a copy that
/// finish() writes back. Copies of a device's tensors go by the current stream of the device.
class Flat {
 public:
  /// @param tensor stays where it is as long as this. @param read whether the present contents matter.
  Flat(const at::Tensor& tensor, bool read);

  /// Contents times `factor`, in a copy of their own: the tensor stays as it is until finish().
  Flat(const at::Tensor& tensor, const at::Tensor& factor);

  /// From now on a copy, if it is not one yet. @param read whether the present contents matter.
  void detach(bool read);

  /// Waits for the copy from the device, if there is one.
  void* data();
  const at::Tensor& tensor() const { return copy_.defined() ? copy_ : *tensor_; }
  void finish();

 private:
  const at::Tensor* tensor_;
  at::Tensor copy_;  // undefined where the tensor itself will do
  bool arriving_ = false;
};

}  // namespace smddp::torch_binding
