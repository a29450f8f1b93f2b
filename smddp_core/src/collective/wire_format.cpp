#include "collective/wire_format.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernel/reduce.hpp"
#include "memory.hpp"

namespace smddp {
namespace {

// Elements treated at a time: three tiles of floats stay in L1.
constexpr std::size_t kTile = 1024;

void convert(DType from, DType to, void* out, const void* in, std::size_t count) {
  reduce_into(out, &in, 1, count, {ReduceOp::sum, from, to, 1});
}

void encode_tile(DType type, void* to, const float* in, std::size_t count, float* residual) {
  float wanted[kTile];
  float kept[kTile];
  const void* parts[] = {in, residual};
  reduce_into(wanted, parts, 2, count, {ReduceOp::sum, DType::f32, DType::f32, 1});
  convert(DType::f32, type, to, wanted, count);
  convert(type, DType::f32, kept, to, count);
  for (std::size_t i = 0; i < count; ++i) {
    const float left = wanted[i] - kept[i];
    // An overflow or a NaN shows once, as it does without feedback; it must not stay for ever.
    residual[i] = std::fabs(left) <= FLT_MAX ? left : 0.F;
  }
}

}  // namespace

void encode(DType type, void* to, const float* in, std::size_t count, float* residual) {
  if (!residual) return convert(DType::f32, type, to, in, count);
  for (std::size_t at = 0; at < count; at += kTile)
    encode_tile(type, bytes_at(to, at * size_of(type)), in + at, std::min(kTile, count - at), residual + at);
}

void decode(DType type, float* to, const void* in, std::size_t count) { convert(type, DType::f32, to, in, count); }

}  // namespace smddp
