// What the sets of loops need of the machine, asked by single features: GCC knows "x86-64-v3" as a name from 12 on.
#pragma once

#ifdef SMDDP_X86_LEVELS
#include <cpuid.h>

namespace smddp {

/// AVX2, FMA and F16C, which the system lets processes use. CMakeLists.txt compiles reduce_x86_64_v3.cpp for these.
inline bool has_x86_64_v3() {
  __builtin_cpu_init();
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // not a name for GCC 9 and 10
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/// Those and the AVX-512 of Skylake-SP. reduce_x86_64_v4.cpp is compiled for these.
inline bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace smddp
#endif
