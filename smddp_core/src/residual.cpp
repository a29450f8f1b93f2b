#include "smddp/residual.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace smddp {
namespace {

// On pages of 4 KiB the first pass over a residual of 128 MiB took 100 ms more than the later ones.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

void ask_for_huge_pages(void* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  // A wish: without them all is the same, only slower at first.
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace

Residual::Zeros Residual::zeros(std::size_t count) {
  Zeros memory(static_cast<float*>(std::calloc(count, sizeof(float))));
  if (!memory && count > 0) throw std::bad_alloc();
  ask_for_huge_pages(memory.get(), count * sizeof(float));
  return memory;
}

void Residual::begin(std::size_t count) {
  if (count_ == count) return;
  clear();
  sent_ = zeros(count);
  reduced_ = zeros(count);
  count_ = count;
}

}  // namespace smddp
