#include "runtime/task_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

std::string text_of(const std::vector<int>& cpus) {
  std::string text;
  for (const int cpu : cpus) text += (text.empty() ? "" : ",") + std::to_string(cpu);
  return text;
}

}  // namespace

TaskPool::TaskPool(int threads, const char* name) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
    ::pthread_setname_np(threads_.back().native_handle(), name);
  }
}

TaskPool::~TaskPool() {
  drain();
  if (birthplace_.here()) return;
  static_cast<void>(ready_.release());
  static_cast<void>(idle_.release());
}

void TaskPool::run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  for (std::thread& thread : threads_)
    if (::pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) != 0)
      throw UsageError("SMDDP_CPUS: of the cores " + text_of(cpus) +
                       " this process may use none: see Cpus_allowed_list in /proc/" + std::to_string(::getpid()) +
                       "/status and the cpuset of its container");
}

void TaskPool::post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    close_door();
    tasks_.push_back(std::move(task));
  }
  ready_->notify_one();
}

void TaskPool::drain() {
  if (!birthplace_.here()) {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    close_door();
  }
  ready_->notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

bool TaskPool::try_enter() {
  Door expected = Door::open;
  return door_.compare_exchange_strong(expected, Door::entered, std::memory_order_acquire, std::memory_order_relaxed);
}

void TaskPool::leave() {
  Door expected = Door::entered;
  if (door_.compare_exchange_strong(expected, Door::open, std::memory_order_release, std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  entered_ = false;
  settle();
}

// With the lock held. From here on nobody enters, and who is in leaves by way of the lock.
void TaskPool::close_door() {
  if (door_.exchange(Door::closed, std::memory_order_acq_rel) == Door::entered) entered_ = true;
}

// With the lock held, after something has ended.
void TaskPool::settle() {
  if (closing_ || !tasks_.empty()) ready_->notify_all();
  if (!tasks_.empty() || running_ > 0 || entered_) return;
  idle_->notify_all();
  if (!closing_) door_.store(Door::open, std::memory_order_release);
}

bool TaskPool::wait_idle(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool idle = idle_->wait_for(lock, patience, [&] {
    // Each time: who ended what was under way opened it, and somebody may have entered before this thread had the lock.
    close_door();
    return tasks_.empty() && running_ == 0 && !entered_;
  });
  settle();
  return idle;
}

void TaskPool::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_->wait(lock, [&] { return !entered_ && (closing_ || !tasks_.empty()); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;  // what it holds on to is let go before the pool counts as idle
    const std::lock_guard<std::mutex> lock(mutex_);
    --running_;
    settle();
  }
}

}  // namespace smddp
