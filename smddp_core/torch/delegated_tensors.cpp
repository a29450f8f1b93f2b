#include "delegated_tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

std::string type_of(const at::Tensor& tensor) {
  return (tensor.layout() == c10::kStrided ? "" : "sparse ") + std::string(c10::toString(tensor.scalar_type()));
}

std::string in_brackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

}  // namespace

at::Tensor unknown_to_python(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.detach();
}

std::string root(const char* way, int64_t rank) { return std::string(way) + " rank " + std::to_string(rank); }

DelegatedCall same_types(OpKind kind, const Tensors& tensors) {
  return {kind, name_of(kind) + in_brackets(tensors.empty() ? "" : type_of(tensors[0])), {}, {}};
}

DelegatedCall same_sizes(OpKind kind, const Tensors& tensors, const std::string& more) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() != c10::kStrided) return same_types(kind, tensors);
    text += (text.empty() ? "" : ", ") + type_of(tensor) + ", " + std::to_string(tensor.nbytes()) + " bytes";
  }
  return {kind, name_of(kind) + in_brackets(text + (more.empty() ? "" : ", " + more)), {}, {}};
}

std::vector<std::uint64_t> bytes_of_each(const Tensors& tensors) {
  std::vector<std::uint64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(tensor.nbytes());
  return bytes;
}

std::vector<std::uint64_t> bytes_of_each(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  std::vector<int64_t> lengths = splits;
  if (splits.empty()) {
    TORCH_CHECK(rows % ranks == 0, "smddp: all_to_all_single: the first dimension of a tensor, ", rows,
                ", is no multiple of the group's size, ", ranks);
    lengths.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  int64_t sum = 0;
  bool negative = false;
  for (const int64_t length : lengths) {
    sum += length;
    negative = negative || length < 0;
  }
  TORCH_CHECK(lengths.size() == static_cast<std::size_t>(ranks) && sum == rows && !negative,
              "smddp: all_to_all_single: ", lengths.size(), " split sizes that add up to ", sum, " in a group of ",
              ranks, " for a tensor whose first dimension is ", rows);
  std::vector<std::uint64_t> bytes;
  for (const int64_t length : lengths)
    bytes.push_back(length ? tensor.nbytes() / static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(length)
                           : 0);
  return bytes;
}

void require_contiguous(const Tensors& tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.is_cuda() || tensor.layout() != c10::kStrided || tensor.is_contiguous(),
                      "smddp: ", operation, " takes contiguous tensors: call contiguous() first");
}

void require_one_each(const std::vector<Tensors>& lists, bool has_list, const Tensors& own, int ranks,
                      const char* operation) {
  TORCH_CHECK_VALUE(own.size() == 1, "smddp: ", operation, " takes one tensor a call, got ", own.size());
  TORCH_CHECK_VALUE(lists.size() == (has_list ? 1U : 0U), "smddp: ", operation, " takes a list of tensors on its root ",
                    "and none elsewhere, got ", lists.size(), has_list ? " on the root" : " on another rank");
  if (!has_list) return;
  require_alike(lists[0], static_cast<std::size_t>(ranks), own[0], operation);
  for (const at::Tensor& tensor : lists[0])
    TORCH_CHECK_VALUE(tensor.sizes() == own[0].sizes(), "smddp: ", operation,
                      ": tensors must have one shape: ", tensor.sizes(), " beside ", own[0].sizes());
}

}  // namespace smddp::torch_binding
