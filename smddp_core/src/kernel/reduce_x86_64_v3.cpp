#define SMDDP_KERNEL_NAMESPACE x86_64_v3
#include "kernel/reduce_kernels.inc"
