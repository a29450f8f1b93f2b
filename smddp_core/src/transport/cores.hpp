// What a host's cores allow: may ranks spin while they wait, and how large is a chunk that stays in a core's cache.
#pragma once

#include <sched.h>

#include <cstddef>
#include <string>
#include <vector>

namespace smddp {

/// Cores this process may run on (sched_getaffinity); all bits clear if unknown.
cpu_set_t allowed_cores();

/// CPU time the container may take, in cores, rounded down but at least 1; a large number where there is no limit.
/// Reads the process's cgroup, version 2 (cpu.max) or 1 (cpu.cfs_quota_us), and all above it.
int quota_cores();

/// Parts of quota_cores(): a line of cpu.max ("200000 100000", "max 100000"), as cores; 0 for no limit.
double cores_of_cpu_max(const std::string& line);

/// Whether each of `masks` (one a process) can have a core of its own at the same time, within `quota` cores in all:
/// for every mask, no more processes are confined to its cores than it has (Hall's condition for the masks themselves,
/// which are equal or disjoint in practice).
bool cores_suffice(const std::vector<cpu_set_t>& masks, int quota);

/// Moves the calling thread to a core that it may use and that is not one of `taken`, if there is any: the one of the
/// nearest number, since those share a socket as a rule. Its affinity is as before afterwards.
void leave_cores(const cpu_set_t& taken);

/// Size of a core's L2 cache in bytes; 0 if the system does not say.
std::size_t l2_cache_bytes();

}  // namespace smddp
