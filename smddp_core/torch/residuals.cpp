#include "residuals.hpp"

namespace smddp::torch_binding {

// A weak reference keeps the StorageImpl's address from being used again, but not its memory.
void Residuals::drop_dead() {
  entries_.remove_if([](const Entry& entry) { return entry.storage.expired(); });
}

std::size_t Residuals::size() {
  const std::lock_guard<std::mutex> lock(mutex_);
  drop_dead();
  return entries_.size();
}

std::shared_ptr<Residual> Residuals::of(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  drop_dead();
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
    if (entry->storage._unsafe_get_target() == storage && entry->offset == tensor.storage_offset() &&
        entry->count == tensor.numel()) {
      entries_.splice(entries_.begin(), entries_, entry);
      if (!entry->residual) entry->residual = std::make_shared<Residual>();
      return entries_.front().residual;
    }
  if (entries_.size() >= kMost) entries_.pop_back();
  entries_.push_front({tensor.storage().getWeakStorageImpl(), static_cast<std::ptrdiff_t>(tensor.storage_offset()),
                       tensor.numel(), nullptr});
  return nullptr;
}

}  // namespace smddp::torch_binding
