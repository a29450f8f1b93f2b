#define SMDDP_KERNEL_NAMESPACE baseline
#define SMDDP_KERNEL_INTEGER_AVERAGES
#include "kernel/reduce_kernels.inc"
