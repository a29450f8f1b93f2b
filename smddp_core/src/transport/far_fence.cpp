#include "transport/far_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>

namespace smddp {
namespace {

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

// Older ones know the command (from 4.16 on), but the thread that registers may go on without obeying (Linux commit
// ce29ddc47b91 mended that).
bool kernel_is_new_enough() {
  utsname names{};
  int major = 0;
  int minor = 0;
  if (::uname(&names) != 0 || std::sscanf(names.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 12);
}

}  // namespace

bool obey_far_fences() {
  return kernel_is_new_enough() && membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0 &&
         membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
}

// The kernel begins and ends the call with a full fence of this thread.
bool far_fence() { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0; }

}  // namespace smddp
