// Element-wise reduction of several buffers into one: the only arithmetic of the library.
#pragma once

#include <cstddef>

#include "kernel/copy.hpp"
#include "smddp/types.hpp"

namespace smddp {

/// How buffers of several ranks become one.
struct Reduction {
  ReduceOp op = ReduceOp::sum;  ///< `avg` sums; the division is `divisor`.
  DType in = DType::f32;        ///< Type of the sources.
  DType out = DType::f32;       ///< Type of the result: `in`, or one of the two is accumulator_of() the other.
  int divisor = 1;              ///< Applied once to the finished sum, before rounding.
};

/// dst[i] = (sources[0][i] op sources[1][i] op ...) / divisor, strictly in the order of the sources, for i < count.
/// `dst` may be one of the sources, else it must not overlap any. f16 and bf16 are accumulated in f32, rounded to
/// nearest even once; averages of integers are summed wide enough. min and max keep the earlier of equal operands (-0
/// and +0), and a NaN.
/// @throws UsageError for type pairs other than the ones above.
void reduce_into(void* dst, const void* const* sources, int source_count, std::size_t count,
                 const Reduction& reduction);

/// The same in pairs, then pairs of pairs, if there is a power of two of sources: (s0 op s1) op (s2 op s3). Where that
/// gives other bits than reduce_into(): for sums and products of floats. Elsewhere it is reduce_into().
void reduce_in_pairs(void* dst, const void* const* sources, int source_count, std::size_t count,
                     const Reduction& reduction);

/// reduce_into() `dst`, and the same to `also`, which is written with the given stores, before any later store of this
/// thread, and is one of the sources or overlaps nothing. `reduction.in` and `.out` must be one type. With cached
/// stores, `dst` is fetched ahead.
void reduce_into_both(void* dst, void* also, Stores stores, const void* const* sources, int source_count,
                      std::size_t count, const Reduction& reduction);

/// Which memory of a copy lies in no cache of this core: what is read, or what is overwritten.
enum class Far { source, target };

/// memcpy between what does not overlap, which fetches the far side ahead.
void copy_ahead(Far far, void* to, const void* from, std::size_t bytes);

/// to[i] = in[i] + left[i] rounded to `type` (f16 or bf16), to nearest even, and left[i] what that left out: zero where
/// the result is not finite. Nothing overlaps.
void round_into(DType type, void* to, const float* in, float* left, std::size_t count);

}  // namespace smddp
