#include "transport/peer_memory.hpp"

#include <sys/uio.h>

#include <cerrno>

#include "memory.hpp"

namespace smddp {

int read_memory_of(pid_t pid, std::uintptr_t address, void* to, std::size_t bytes) {
  // It stops early at a page that cannot be read, and at 2 GiB.
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{bytes_at(to, done), bytes - done};
    const iovec there{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t n = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    done += static_cast<std::size_t>(n);
  }
  return 0;
}

bool can_read(const MemoryProof& proof) {
  std::uint64_t found = 0;
  return read_memory_of(proof.pid, proof.address, &found, sizeof found) == 0 && found == proof.value;
}

}  // namespace smddp
