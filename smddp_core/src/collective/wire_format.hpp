// Conversion between float32 and the 16-bit types that may stand for it between hosts.
#pragma once

#include <cstddef>

#include "smddp/types.hpp"

namespace smddp {

/// to[i] = in[i] rounded to `type` (f16 or bf16), to nearest even. With `residual`: to[i] = in[i] + residual[i]
/// rounded, and residual[i] becomes what was left out (zero where the result is not finite).
void encode(DType type, void* to, const float* in, std::size_t count, float* residual);

/// to[i] = in[i], exactly.
void decode(DType type, float* to, const void* in, std::size_t count);

}  // namespace smddp
