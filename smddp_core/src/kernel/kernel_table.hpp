// The sets of loops that were compiled, one namespace an instruction set; reduce.cpp picks one for the machine.
#pragma once

#include <cstddef>

#include "kernel/reduce.hpp"

namespace smddp {

/// See reduce_into(); types and operation are already chosen.
using Kernel = void (*)(void* dst, const void* const* sources, int source_count, std::size_t count, int divisor);

/// The same for reduce_into_both().
using BothKernel = void (*)(void* dst, void* also, const void* const* sources, int source_count, std::size_t count,
                            int divisor);

/// See copy_ahead().
using CopyKernel = void (*)(void* to, const void* from, std::size_t bytes);

/// See round_into().
using RoundKernel = void (*)(void* to, const float* in, float* left, std::size_t count);

namespace baseline {
/// The kernel for a type pair and operation, or nullptr where there is none. Averages of integers are here only: their
/// time is that of the division, which no wider instructions have (measured with AVX2's: the same).
Kernel find(DType in, DType out, ReduceOp op);
/// The same; there are some for sums and averages of the types of gradients, of an x86-64 baseline none.
BothKernel find_both(DType type, ReduceOp op, Stores stores);
CopyKernel find_copy(Far far);
RoundKernel find_round(DType type);
}  // namespace baseline

#ifdef SMDDP_X86_LEVELS
namespace x86_64_v3 {  // AVX2, FMA, F16C: from Haswell and Zen
Kernel find(DType in, DType out, ReduceOp op);
BothKernel find_both(DType type, ReduceOp op, Stores stores);
CopyKernel find_copy(Far far);
RoundKernel find_round(DType type);
}  // namespace x86_64_v3
namespace x86_64_v4 {  // AVX-512: from Skylake-SP and Zen 4
Kernel find(DType in, DType out, ReduceOp op);
BothKernel find_both(DType type, ReduceOp op, Stores stores);
CopyKernel find_copy(Far far);
RoundKernel find_round(DType type);
}  // namespace x86_64_v4
#endif

}  // namespace smddp
