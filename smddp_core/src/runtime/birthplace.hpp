// Whether something that belongs to a process is still in it, or in a copy that fork() made.
#pragma once

#include <atomic>
#include <cstdint>

namespace smddp {

/// Remembers the process it was made in. Threads, connections and locks are that one's alone.
///
/// Costs a load where getpid() costs a system call (85 ns here, and two of them were an eighth of a small all-reduce).
/// Sees what runs fork handlers (pthread_atfork): fork(), and so os.fork() and multiprocessing.
class Birthplace {
 public:
  Birthplace();

  /// False in the child of a fork.
  bool here() const { return forks_ == forks.load(std::memory_order_relaxed); }

 private:
  static std::atomic<std::uint64_t> forks;

  std::uint64_t forks_;
};

}  // namespace smddp
