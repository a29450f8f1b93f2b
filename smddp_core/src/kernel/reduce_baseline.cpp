#define SMDDP_KERNEL_NAMESPACE baseline
#include "kernel/reduce_kernels.inc"
