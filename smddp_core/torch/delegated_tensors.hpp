// Tensors of operations that gloo carries out: what ranks tell one another of them first, what is refused, what gloo
// gets.
//
// gloo compares nothing: less than a rank waits for would be taken for all, and more ends the process.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smddp/delegated_call.hpp"

namespace smddp::torch_binding {

/// For the calls below: "to rank 2".
std::string root(const char* way, int64_t rank);

/// Of an operation in which sizes may differ, and types are the same.
DelegatedCall same_types(OpKind kind, const std::vector<at::Tensor>& tensors);

/// Of one in which sizes are the same, too; sparse tensors are left to the back end. @param more see root().
DelegatedCall same_sizes(OpKind kind, const std::vector<at::Tensor>& tensors, const std::string& more = "");

std::vector<std::uint64_t> bytes_of_each(const std::vector<at::Tensor>& tensors);

/// Of a tensor that is cut along its first dimension, evenly where `splits` is empty.
/// @throws c10::Error when it cannot be cut so.
std::vector<std::uint64_t> bytes_of_each(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks);

/// What the root gives for or gets from each, and the others do not. Checked before a rank says anything: gloo would
/// refuse it when the others have begun, and count their operations and this rank's differently from then on.
/// @throws c10::ValueError
void require_one_each(const std::vector<std::vector<at::Tensor>>& lists, bool has_list,
                      const std::vector<at::Tensor>& own, int ranks, const char* operation);

/// Where gloo takes the memory of a tensor for its elements in order, whatever its strides.
/// @throws c10::ValueError
void require_contiguous(const std::vector<at::Tensor>& tensors, const char* operation);

/// gloo's threads drop an operation's tensors when it has ended, which may be when the interpreter ends. To drop one
/// that Python knows takes the interpreter, and aborts the process then (pytorch/pytorch#190489). So gloo gets tensors
/// that Python does not know, of the same memory. Sparse ones have none to share: it puts new memory into them.
at::Tensor unknown_to_python(const at::Tensor& tensor);

template <class Lists>
Lists unknown_to_python(const Lists& lists) {
  Lists copies;
  for (const auto& one : lists) copies.push_back(unknown_to_python(one));
  return copies;
}

}  // namespace smddp::torch_binding
