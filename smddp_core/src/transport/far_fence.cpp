#include "transport/far_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace smddp {
namespace {

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool obey_far_fences() {
  return membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0 && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
}

// The kernel begins and ends the call with a full fence of this thread.
void far_fence() { membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED); }

}  // namespace smddp
