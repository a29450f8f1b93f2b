// Buffers whose reductions are the same bits in whatever order, and what they are.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "half_types.hpp"
#include "kernel/reduce.hpp"

namespace smddp::testing {

using Buffer = std::vector<unsigned char>;  // compared by memcmp, as vectors of std::byte are not

// Small whole numbers: every order of summation gives the same bits, so that all paths have one expected result.
inline Buffer pattern(DType type, std::size_t count, int seed) {
  Buffer buffer(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    // Without a period: what is in the wrong place differs, too.
    const std::uint64_t mixed =
        (std::uint64_t{i} + 1) * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(seed) * 0xD1B54A32D192ED03U;
    const int value = static_cast<int>((mixed >> 40U) % 5) + 1;
    const auto put = [&](auto typed) { std::memcpy(buffer.data() + i * sizeof(typed), &typed, sizeof(typed)); };
    switch (type) {
      case DType::f32:
        put(static_cast<float>(value));
        break;
      case DType::f64:
        put(static_cast<double>(value));
        break;
      case DType::f16:
        put(f16_of(static_cast<float>(value)));
        break;
      case DType::bf16:
        put(bf16_of(static_cast<float>(value)));
        break;
      case DType::u8:
      case DType::i8:
      case DType::bytes:
        put(static_cast<std::int8_t>(value));
        break;
      case DType::i16:
        put(static_cast<std::int16_t>(value));
        break;
      case DType::i32:
        put(static_cast<std::int32_t>(value));
        break;
      case DType::c64:
        put(std::complex<float>(static_cast<float>(value), 1.F));
        break;
      case DType::c128:
        put(std::complex<double>(value, -2.));
        break;
      case DType::i128:
        break;  // never a caller's
      case DType::i64:
        put(static_cast<std::int64_t>(value));
        break;
    }
  }
  return buffer;
}

/// The reduction of the patterns of these seeds.
inline Buffer reduced(DType type, std::size_t count, const std::vector<int>& seeds, ReduceOp op) {
  std::vector<Buffer> inputs;
  std::vector<const void*> sources;
  for (const int seed : seeds) inputs.push_back(pattern(type, count, seed));
  for (const Buffer& input : inputs) sources.push_back(input.data());
  Buffer result(count * size_of(type));
  const DType part = component_of(type);
  const int size = static_cast<int>(seeds.size());
  reduce_into(result.data(), sources.data(), size, result.size() / size_of(part),
              {op, part, part, op == ReduceOp::avg ? size : 1});
  return result;
}

}  // namespace smddp::testing
