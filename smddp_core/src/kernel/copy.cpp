#include "kernel/copy.hpp"

#include <algorithm>
#include <cstdint>

#include "memory.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace smddp {
namespace {

#ifdef __SSE2__
constexpr std::size_t kLine = 64;

// Whole lines only: the processor joins the four stores to one write, and a partial line would be read first.
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  // Streaming stores are not ordered with the counter that announces them.
  _mm_sfence();
}

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  const std::size_t body = (bytes - head) / kLine * kLine;
  copy_bytes(to, from, head);
  stream_lines(to + head, from + head, body);
  copy_bytes(to + head + body, from + head + body, bytes - head - body);
}
#endif

}  // namespace

bool can_stream() {
#ifdef __SSE2__
  return true;
#else
  return false;
#endif
}

void copy_with(Stores stores, void* to, const void* from, std::size_t bytes) {
#ifdef __SSE2__
  if (stores == Stores::streaming && bytes > 0)
    return copy_streaming(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
#endif
  static_cast<void>(stores);
  copy_bytes(to, from, bytes);
}

}  // namespace smddp
