#define SMDDP_KERNEL_NAMESPACE baseline
#define SMDDP_KERNEL_INTEGER_AVERAGES
// What an x86-64 processor without AVX2 reduces to two places is copied.
#ifndef SMDDP_X86_LEVELS
#define SMDDP_KERNEL_BOTH
#endif
#include "kernel/reduce_kernels.inc"
