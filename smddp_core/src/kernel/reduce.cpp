#include "kernel/reduce.hpp"

#include <string>

#include "kernel/kernel_table.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

using Find = Kernel (*)(DType, DType, ReduceOp);

Find for_this_machine() {
#ifdef SMDDP_X86_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return x86_64_v4::find;
  if (__builtin_cpu_supports("x86-64-v3")) return x86_64_v3::find;
#endif
  return baseline::find;
}

}  // namespace

void reduce_into(void* dst, const void* const* sources, int source_count, std::size_t count,
                 const Reduction& reduction) {
  static const Find find = for_this_machine();
  const Kernel kernel = find(reduction.in, reduction.out, reduction.op);
  if (!kernel)
    throw UsageError(std::string("smddp: cannot reduce ") + name_of(reduction.in) + " to " + name_of(reduction.out) +
                     " with " + name_of(reduction.op));
  kernel(dst, sources, source_count, count, reduction.divisor);
}

}  // namespace smddp
