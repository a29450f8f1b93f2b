#include "transport/cores.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace smddp {
namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

double smaller_limit(double a, double b) { return a > 0 && (b <= 0 || a < b) ? a : b; }

// Limits of `path` and of the folders above it, up to `root`.
template <class Read>
double tightest(const std::string& root, std::string path, Read read) {
  double limit = 0;
  for (;;) {
    limit = smaller_limit(read(root + path), limit);
    const std::size_t cut = path.rfind('/');
    if (cut == std::string::npos) return limit;
    path.resize(cut);
  }
}

double version_2(const std::string& folder) { return cores_of_cpu_max(first_line(folder + "/cpu.max")); }

double version_1(const std::string& folder) {
  return cores_of_cpu_max(first_line(folder + "/cpu.cfs_quota_us") + " " + first_line(folder + "/cpu.cfs_period_us"));
}

bool contains(const cpu_set_t& outer, const cpu_set_t& inner) {
  cpu_set_t both;
  CPU_AND(&both, &outer, &inner);
  return CPU_EQUAL(&both, &inner);
}

}  // namespace

cpu_set_t allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  return set;
}

double cores_of_cpu_max(const std::string& line) {
  std::istringstream in(line);
  double quota = 0;
  double period = 0;
  return in >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

// Lines of /proc/self/cgroup are "number:controllers:path"; version 2 has number 0 and no controllers.
int quota_cores() {
  double limit = 0;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      limit = smaller_limit(tightest(kCgroups, path, version_2), limit);
    else if (controllers.find(",cpu,") != std::string::npos)
      limit = smaller_limit(tightest(std::string(kCgroups) + "/cpu", path, version_1), limit);
  }
  return limit > 0 ? std::max(1, static_cast<int>(limit)) : INT_MAX;
}

bool cores_suffice(const std::vector<cpu_set_t>& masks, int quota) {
  if (static_cast<int>(masks.size()) > quota) return false;
  return std::all_of(masks.begin(), masks.end(), [&](const cpu_set_t& mask) {
    const auto confined =
        std::count_if(masks.begin(), masks.end(), [&](const cpu_set_t& m) { return contains(mask, m); });
    return confined <= CPU_COUNT(&mask);
  });
}

void leave_cores(const cpu_set_t& taken) {
  const cpu_set_t allowed = allowed_cores();
  const int here = ::sched_getcpu();
  int nearest = -1;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && !CPU_ISSET(core, &taken) &&
        (nearest < 0 || std::abs(core - here) < std::abs(nearest - here)))
      nearest = core;
  if (nearest < 0) return;
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(nearest, &there);
  // The first call moves the thread, the second gives it the others back without moving it again.
  if (::sched_setaffinity(0, sizeof(there), &there) == 0) ::sched_setaffinity(0, sizeof(allowed), &allowed);
}

std::size_t l2_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  // "1024K"; index2 is the unified L2 where index0 and index1 are the halves of L1.
  std::istringstream in(first_line("/sys/devices/system/cpu/cpu0/cache/index2/size"));
  std::size_t kibibytes = 0;
  return in >> kibibytes ? kibibytes << 10 : 0;
}

}  // namespace smddp
