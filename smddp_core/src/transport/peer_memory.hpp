// Reading another process's memory without its help: process_vm_readv(2), "cross-memory attach".
//
// It copies once where shared memory copies twice. The kernel allows it between processes of one user in one pid
// namespace, unless a security module (Yama's ptrace_scope) or a container's seccomp profile forbids it; whether it
// works is tried, not guessed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace smddp {

/// A word in a process's own memory, by which others find out that they read the right process.
struct MemoryProof {
  pid_t pid = 0;
  std::uintptr_t address = 0;
  std::uint64_t value = 0;
};

/// Copies `bytes` bytes at `address` of process `pid` to `to`. @return 0, or the errno value of what went wrong; a part
/// may have been copied then.
int read_memory_of(pid_t pid, std::uintptr_t address, void* to, std::size_t bytes);

/// Whether this process can read that of `proof`.
bool can_read(const MemoryProof& proof);

}  // namespace smddp
