// Error feedback for tensors: what rounding to a 16-bit wire format left out of each, until its storage dies.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "smddp/residual.hpp"

namespace smddp::torch_binding {

/// A residual belongs to a run of a storage (a gradient bucket), never to an address: memory that was freed and given
/// to another tensor has none. Thread-safe.
class Residuals {
 public:
  /// More tensors than this are not remembered; the one that was not used for longest is forgotten first.
  static constexpr std::size_t kMost = 1024;

  /// The residual of the elements that `tensor` sees, kept until the tensor's storage is freed. None the first time:
  /// tensors that are summed once (temporaries) take no memory.
  std::shared_ptr<Residual> of(const at::Tensor& tensor);

  /// Residuals of living storages.
  std::size_t size();

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::ptrdiff_t offset;
    std::int64_t count;
    std::shared_ptr<Residual> residual;
  };
  void drop_dead();

  std::mutex mutex_;
  std::list<Entry> entries_;  // last used first
};

}  // namespace smddp::torch_binding
