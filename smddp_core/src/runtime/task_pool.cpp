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
      throw UsageError("SMDDP_CPUS: of the cores " + text_of(cpus) + " this process may use none: see taskset -cp " +
                       std::to_string(::getpid()));
}

void TaskPool::post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
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
  }
  ready_->notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

bool TaskPool::try_enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closing_ || running_ > 0 || !tasks_.empty()) return false;
  entered_ = true;
  ++running_;
  return true;
}

void TaskPool::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  entered_ = false;
  --running_;
  if (tasks_.empty()) idle_->notify_all();
  if (closing_ || !tasks_.empty()) ready_->notify_all();
}

bool TaskPool::wait_idle(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_->wait_for(lock, patience, [&] { return tasks_.empty() && running_ == 0; });
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
    if (--running_ == 0 && tasks_.empty()) idle_->notify_all();
  }
}

}  // namespace smddp
