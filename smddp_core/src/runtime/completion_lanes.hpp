// Threads that run what follows an operation: callbacks, which may themselves issue operations and wait for them.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/task_pool.hpp"

namespace smddp {

/// Operations issued by the program complete on lane 0, one after another in their order; those issued by a callback on
/// lane n complete on lane n + 1. So a callback can wait for what it issued, and callbacks of one lane issue their
/// operations in the same order on every rank. (A plain pool of k threads blocks once k callbacks wait, and lets them
/// race.)
///
/// A callback must not wait for an operation that the program issued after the callback's own: it would wait for
/// itself.
class CompletionLanes {
 public:
  CompletionLanes() = default;
  ~CompletionLanes() { drain(); }
  CompletionLanes(const CompletionLanes&) = delete;
  CompletionLanes& operator=(const CompletionLanes&) = delete;

  /// Lane for an operation that is issued by the calling thread.
  static int lane_of_this_thread();

  /// Runs `task` on `lane`; lanes deeper than the deepest share it. A lane's thread starts when it is first needed.
  void post(int lane, std::function<void()> task);

  /// Runs what is queued and ends the threads; later posts are ignored.
  void drain();

 private:
  // Each level is a callback waiting for the one below; PowerSGD needs two.
  static constexpr int kLanes = 8;

  std::mutex mutex_;
  bool closed_ = false;
  std::array<std::unique_ptr<TaskPool>, kLanes> lanes_;
};

}  // namespace smddp
