#define SMDDP_KERNEL_NAMESPACE x86_64_v3
#define SMDDP_KERNEL_BOTH
#include "kernel/reduce_kernels.inc"
