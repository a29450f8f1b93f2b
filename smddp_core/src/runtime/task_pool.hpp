// A queue of tasks and the threads that run them in order of arrival.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/birthplace.hpp"

namespace smddp {

/// With one thread, tasks run strictly one after another. Tasks must not throw.
class TaskPool {
 public:
  /// @param name shown by `top -H`; up to 15 characters.
  TaskPool(int threads, const char* name);

  /// drain().
  ~TaskPool();

  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Lets the threads run on these cores only; those that the process may not use do not count.
  /// @throws UsageError when none is left.
  void run_on(const std::vector<int>& cpus);

  void post(std::function<void()> task);

  /// Takes the place of a task for the calling thread, if nothing is queued or running: no task starts before leave().
  /// False otherwise. For pools of one thread.
  bool try_enter();

  /// Ends what a successful try_enter() began.
  void leave();

  /// Waits until nothing is queued or running. False if that takes longer than `patience`.
  bool wait_idle(std::chrono::milliseconds patience);

  /// Runs what is queued and ends the threads; later posts are ignored. Must not be called by one of the tasks.
  /// In the child of a fork, where the threads do not exist, forgets them.
  void drain();

 private:
  /// Whether a caller's thread may enter without the lock: only while there is nothing else, and then by itself.
  enum class Door : int {
    open,     ///< Nothing is queued or running, nobody waits.
    entered,  ///< So it was, and a caller's thread is in.
    closed,   ///< All else: what is under the lock says what.
  };

  void work();
  void close_door();
  void settle();

  const Birthplace birthplace_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  // Leaked in the child of a fork: to destroy one waits for those who wait on it, which are not there.
  std::unique_ptr<std::condition_variable> ready_ = std::make_unique<std::condition_variable>();
  std::unique_ptr<std::condition_variable> idle_ = std::make_unique<std::condition_variable>();
  int running_ = 0;
  bool closing_ = false;
  bool entered_ = false;  // by a caller's thread, as known while the door is closed: the pool's own stand back
  std::atomic<Door> door_{Door::open};
  std::vector<std::thread> threads_;
};

}  // namespace smddp
