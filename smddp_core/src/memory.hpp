// Byte arithmetic on untyped buffers.
#pragma once

#include <cstddef>
#include <cstring>

namespace smddp {

inline const std::byte* bytes_at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
inline std::byte* bytes_at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }

/// memcpy that allows what it does not: null pointers with zero bytes (empty tensors have them), and a copy onto
/// itself.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace smddp
