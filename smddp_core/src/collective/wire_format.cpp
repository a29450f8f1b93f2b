#include "collective/wire_format.hpp"

#include "kernel/reduce.hpp"

namespace smddp {
namespace {

void convert(DType from, DType to, void* out, const void* in, std::size_t count) {
  reduce_into(out, &in, 1, count, {ReduceOp::sum, from, to, 1});
}

}  // namespace

void encode(DType type, void* to, const float* in, std::size_t count, float* residual) {
  if (residual) return round_into(type, to, in, residual, count);
  convert(DType::f32, type, to, in, count);
}

void decode(DType type, float* to, const void* in, std::size_t count) { convert(type, DType::f32, to, in, count); }

}  // namespace smddp
