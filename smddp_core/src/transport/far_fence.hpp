// A memory fence whose whole price the side pays that needs it rarely: membarrier(2), across processes. The other side
// does without the instruction that waits until its stores have left the core, some 200 ns when another core holds the
// lines. (Asymmetric fences: Goldblatt, "Asymmetric fences", ISO C++ paper P1202.)
#pragma once

#include <atomic>

namespace smddp {

/// From now on the threads of this process obey far_fence() of any process.
/// @returns whether they do, and whether this process may call it: not with kernels older than 5.12, nor where a
/// sandbox forbids the system call.
bool obey_far_fences();

/// A full fence in the calling thread and, before it returns, one in each running thread of the processes that obey.
/// False when the system refuses.
bool far_fence();

/// What stands in the others' threads where a fence would: it keeps the compiler from moving memory accesses across.
inline void near_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace smddp
