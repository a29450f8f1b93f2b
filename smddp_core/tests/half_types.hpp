// float16 and bfloat16 by their bits, for compilers without such types.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace smddp::testing {

inline std::uint16_t bf16_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

inline float float_of_bf16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

/// `value` must be zero or a number that float16 has in its normal range.
inline std::uint16_t f16_of(float value) {
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const int bits = value == 0 ? 0 : ((exponent + 14) << 10) + static_cast<int>(fraction * 2048.F) - 1024;
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000 : 0) | bits);
}

/// The same numbers back.
inline float float_of_f16(std::uint16_t value) {
  const int exponent = (value >> 10) & 0x1F;
  const float magnitude = exponent == 0 ? 0.F : std::ldexp(static_cast<float>(1024 + (value & 0x3FF)), exponent - 25);
  return (value & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace smddp::testing
