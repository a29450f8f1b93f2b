// From tensors to the core's plain memory: types, contiguous copies, checks of shapes.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

#include "smddp/types.hpp"

namespace smddp::torch_binding {

using Tensors = std::vector<at::Tensor>;

/// The core's type for arithmetic, if it has one.
std::optional<DType> arithmetic_type(at::ScalarType type);

/// The core's reduction, if it has it.
std::optional<ReduceOp> reduce_op(const c10d::ReduceOp& op);

/// True when the core can sum these: dense, strided, of an arithmetic type.
bool can_reduce(const Tensors& tensors, const c10d::ReduceOp& op);

/// True when the core can move these: dense and strided.
bool can_move(const Tensors& tensors);

/// @throws NotImplementedError for tensors that are not on the CPU.
void require_cpu(const Tensors& tensors, const char* operation);

/// Checks that there are `count` tensors, each with the type and number of elements of `like`.
void require_alike(const Tensors& tensors, std::size_t count, const at::Tensor& like, const char* operation);

/// Checks that `whole` has the type of `part` and `parts` times its elements.
void require_multiple(const at::Tensor& whole, const at::Tensor& part, int parts, const char* operation);

/// Type and code under which the core compares the data of ranks when it only moves bytes.
struct MoveType {
  DType dtype;
  std::uint32_t tag;
};
MoveType move_type(at::ScalarType type);

/// The memory of a tensor as one run of elements: its own if it is contiguous, else a copy that finish() writes back.
class Flat {
 public:
  /// @param read whether the present contents matter.
  Flat(at::Tensor tensor, bool read);

  void* data() const { return flat_.data_ptr(); }
  const at::Tensor& tensor() const { return flat_; }
  void finish();

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
};

}  // namespace smddp::torch_binding
