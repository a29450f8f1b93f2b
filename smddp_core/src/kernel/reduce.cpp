#include "kernel/reduce.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernel/cpu_features.hpp"
#include "kernel/kernel_table.hpp"
#include "memory.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

// What is copied on is still in L1 then.
constexpr std::size_t kTileBytes = std::size_t{8} << 10;

struct Kernels {
  Kernel (*find)(DType, DType, ReduceOp);
  BothKernel (*find_both)(DType, ReduceOp, Stores);
  CopyKernel (*find_copy)(Far);
  RoundKernel (*find_round)(DType);
};

Kernels for_this_machine() {
#ifdef SMDDP_X86_LEVELS
  if (has_x86_64_v4()) return {x86_64_v4::find, x86_64_v4::find_both, x86_64_v4::find_copy, x86_64_v4::find_round};
  if (has_x86_64_v3()) return {x86_64_v3::find, x86_64_v3::find_both, x86_64_v3::find_copy, x86_64_v3::find_round};
#endif
  return {baseline::find, baseline::find_both, baseline::find_copy, baseline::find_round};
}

const Kernels& kernels() {
  static const Kernels chosen = for_this_machine();
  return chosen;
}

Kernel find(const Reduction& reduction) {
  const Kernel best = kernels().find(reduction.in, reduction.out, reduction.op);
  return best ? best : baseline::find(reduction.in, reduction.out, reduction.op);
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::f64 || type == DType::f16 || type == DType::bf16;
}

bool order_shows(const Reduction& reduction) {
  return is_float(reduction.in) && reduction.op != ReduceOp::min && reduction.op != ReduceOp::max;
}

// Two of `scratch`'s tiles are for this level, those behind them for the levels below.
void reduce_tile_in_pairs(void* dst, const void* const* sources, int source_count, std::size_t at, std::size_t count,
                          const Reduction& reduction, std::byte* scratch) {
  const void* halves[2];
  Reduction last = reduction;
  if (source_count == 2) {
    for (int h = 0; h < 2; ++h) halves[h] = bytes_at(sources[h], at * size_of(reduction.in));
  } else {
    const DType wide = accumulator_of(reduction.in, reduction.op);
    for (int h = 0; h < 2; ++h) {
      std::byte* const half = scratch + static_cast<std::size_t>(h) * kTileBytes;
      reduce_tile_in_pairs(half, sources + h * source_count / 2, source_count / 2, at, count,
                           {reduction.op, reduction.in, wide, 1}, scratch + 2 * kTileBytes);
      halves[h] = half;
    }
    last.in = wide;
  }
  reduce_into(dst, halves, 2, count, last);
}

}  // namespace

void reduce_into(void* dst, const void* const* sources, int source_count, std::size_t count,
                 const Reduction& reduction) {
  const Kernel kernel = find(reduction);
  if (!kernel)
    throw UsageError(std::string("smddp: cannot reduce ") + name_of(reduction.in) + " to " + name_of(reduction.out) +
                     " with " + name_of(reduction.op));
  kernel(dst, sources, source_count, count, reduction.divisor);
}

void reduce_in_pairs(void* dst, const void* const* sources, int source_count, std::size_t count,
                     const Reduction& reduction) {
  const bool power_of_two = (source_count & (source_count - 1)) == 0;
  if (source_count <= 2 || !power_of_two || !order_shows(reduction))
    return reduce_into(dst, sources, source_count, count, reduction);
  std::size_t levels = 0;
  for (int rest = source_count; rest > 2; rest /= 2) ++levels;
  const std::unique_ptr<std::byte[]> scratch(new std::byte[2 * levels * kTileBytes]);
  const std::size_t tile = kTileBytes / size_of(accumulator_of(reduction.in, reduction.op));
  for (std::size_t at = 0; at < count; at += tile)
    reduce_tile_in_pairs(bytes_at(dst, at * size_of(reduction.out)), sources, source_count, at,
                         std::min(tile, count - at), reduction, scratch.get());
}

void reduce_into_both(void* dst, void* also, Stores stores, const void* const* sources, int source_count,
                      std::size_t count, const Reduction& reduction) {
  const BothKernel both = kernels().find_both(reduction.in, reduction.op, stores);
  if (both) return both(dst, also, sources, source_count, count, reduction.divisor);
  const std::size_t width = size_of(reduction.in);
  const std::size_t tile = kTileBytes / width;
  std::vector<const void*> at_tile(sources, sources + source_count);
  for (std::size_t at = 0; at < count; at += tile) {
    const std::size_t n = std::min(tile, count - at);
    void* const out = bytes_at(dst, at * width);
    reduce_into(out, at_tile.data(), source_count, n, reduction);
    copy_with(stores, bytes_at(also, at * width), out, n * width);
    for (const void*& source : at_tile) source = bytes_at(source, n * width);
  }
}

void copy_ahead(Far far, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) kernels().find_copy(far)(to, from, bytes);
}

void round_into(DType type, void* to, const float* in, float* left, std::size_t count) {
  const RoundKernel kernel = kernels().find_round(type);
  if (!kernel) throw UsageError(std::string("smddp: float32 is not rounded to ") + name_of(type));
  kernel(to, in, left, count);
}

}  // namespace smddp
