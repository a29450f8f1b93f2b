// Many small tensors as one message: what takes a few microseconds each in waiting costs one wait together.
//
// The balanced fusion buffer of Herring (Thangakrishnan et al., SC'20) for coalesced operations: tensors share a flat
// buffer, which is cut into equal shards wherever one ends and the next begins.
#pragma once

#include <cstddef>
#include <vector>

#include "tensors.hpp"

namespace smddp::torch_binding {

/// Tensors of more bytes than this are not copied into a buffer: they are worth a message of their own.
constexpr std::size_t kLargestFused = std::size_t{256} << 10;
/// A buffer is not made larger than this.
constexpr std::size_t kFusionBuffer = std::size_t{4} << 20;

/// Indices of the tensors that go together, in an order that follows from their types and sizes alone, so that all
/// ranks have the same: groups by their first member, members ascending. Only CPU tensors of one type share a group.
std::vector<std::vector<std::size_t>> fusion_groups(TensorList tensors);

}  // namespace smddp::torch_binding
