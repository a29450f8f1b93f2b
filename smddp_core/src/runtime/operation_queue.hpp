// The order of a group's operations, also of those that callbacks issue.
#pragma once

#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/task_pool.hpp"

namespace smddp {

/// Runs operations one at a time. Callbacks of an operation run right after it, on its thread; what they issue runs
/// before anything that the program has issued after that operation (depth first, each depth on a thread of its own),
/// so they can wait for it.
///
/// So the order does not depend on time, and is the same on every rank, if callbacks are attached before the program
/// issues its next operation, as DDP's hooks are: a callback that comes too late for the operation runs at once, in the
/// program's thread, and what it issues comes before what the program issues next, all the same. (Threads that run
/// callbacks beside the queue let them race with the program: with DDP's PowerSGD hook and two buckets, ranks then call
/// different operations.)
class OperationQueue {
 public:
  OperationQueue();
  ~OperationQueue() { drain(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Lets operations run on these cores only. Callbacks, which do the program's work, run on those of the caller.
  /// Before the first operation.
  /// @throws UsageError when none is left.
  void run_on(const std::vector<int>& cpus);

  /// Of the operations that the calling thread issues: 0 for the program's, one more than the operation's whose
  /// callbacks the thread is running, also through callbacks of other queues' operations. Depths beyond the deepest
  /// share it.
  int depth_of_this_thread() const { return depth_of_this_thread(id_); }
  static int depth_of_this_thread(std::uint64_t id);

  /// Tells queues apart, also those that are gone.
  std::uint64_t id() const { return id_; }

  /// Queues `operation` at the calling thread's depth. If it returns true, `callbacks` run when it is done.
  void post(std::function<bool()> operation, std::function<void()> callbacks);

  /// Runs an operation on the calling thread if nothing is before it: none of its depth starts before leave(). False
  /// otherwise.
  bool try_enter();
  void leave();

  /// Waits until nothing is queued or running. False if that takes longer than `patience`.
  bool wait_idle(std::chrono::milliseconds patience) { return pool(0)->wait_idle(patience); }

  /// Runs what is queued and ends the threads; later posts are ignored.
  void drain();

 private:
  // Each depth is a callback that waits for what is below it; PowerSGD needs two.
  static constexpr int kDepths = 8;

  // An operation whose callbacks run, and on whose behalf it was issued.
  struct Frame {
    std::uint64_t queue;
    int depth;
    std::shared_ptr<const Frame> issuer;
  };

  static const Frame* frame_of(std::uint64_t id);
  std::shared_ptr<const Frame> new_frame(int depth) const;
  TaskPool* pool(int depth);
  std::unique_ptr<TaskPool> new_pool(int depth) const;
  void run_callbacks(const std::shared_ptr<const Frame>& frame, const std::function<void()>& callbacks);

  static thread_local std::shared_ptr<const Frame> current_;

  const std::uint64_t id_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<int> cpus_;
  cpu_set_t program_{};
  std::array<std::unique_ptr<TaskPool>, kDepths> pools_;
  TaskPool* first_ = nullptr;  // pools_[0], which is always there: found without a lock
};

}  // namespace smddp
