#include "runtime/operation_queue.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace smddp {
namespace {

constexpr std::chrono::hours kForever{24 * 365};

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Lets the thread run on the cores of `set` while it lives.
class Cores {
 public:
  explicit Cores(const cpu_set_t* set) : changed_(set && ::sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (changed_) ::sched_setaffinity(0, sizeof *set, set);
  }
  ~Cores() {
    if (changed_) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;

 private:
  cpu_set_t before_{};
  const bool changed_;
};

}  // namespace

thread_local std::shared_ptr<const OperationQueue::Frame> OperationQueue::current_;

OperationQueue::OperationQueue() : id_(next_id()) { first_ = (pools_[0] = new_pool(0)).get(); }

std::unique_ptr<TaskPool> OperationQueue::new_pool(int depth) const {
  auto pool = std::make_unique<TaskPool>(1, depth == 0 ? "smddp-progress" : "smddp-nested");
  if (!cpus_.empty()) pool->run_on(cpus_);
  return pool;
}

void OperationQueue::run_on(const std::vector<int>& cpus) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& pool : pools_)
    if (pool) pool->run_on(cpus);
  cpus_ = cpus;
  ::sched_getaffinity(0, sizeof program_, &program_);
}

const OperationQueue::Frame* OperationQueue::frame_of(std::uint64_t id) {
  const Frame* frame = current_.get();
  while (frame && frame->queue != id) frame = frame->issuer.get();
  return frame;
}

int OperationQueue::depth_of_this_thread(std::uint64_t id) {
  const Frame* frame = frame_of(id);
  return frame ? std::min(frame->depth + 1, kDepths - 1) : 0;
}

std::shared_ptr<const OperationQueue::Frame> OperationQueue::new_frame(int depth) const {
  const Frame* before = frame_of(id_);
  // A chain of callbacks without an end must not make one of frames.
  const bool deepest = before && before->depth == depth;
  return std::make_shared<const Frame>(Frame{id_, depth, deepest ? before->issuer : current_});
}

TaskPool* OperationQueue::pool(int depth) {
  if (depth == 0) return first_;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& pool = pools_[static_cast<std::size_t>(depth)];
  if (!pool && !closed_) pool = new_pool(depth);
  return pool.get();
}

void OperationQueue::post(std::function<bool()> operation, std::function<void()> callbacks) {
  const int depth = depth_of_this_thread();
  TaskPool* const here = pool(depth);
  if (!here) return;
  here->post([this, frame = new_frame(depth), operation = std::move(operation), callbacks = std::move(callbacks)] {
    if (operation()) run_callbacks(frame, callbacks);
  });
}

void OperationQueue::run_callbacks(const std::shared_ptr<const Frame>& frame, const std::function<void()>& callbacks) {
  {
    const Cores cores(cpus_.empty() ? nullptr : &program_);
    current_ = frame;
    callbacks();
    current_ = nullptr;
  }
  if (frame->depth + 1 == kDepths) return;
  TaskPool* below = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    below = pools_[static_cast<std::size_t>(frame->depth) + 1].get();
  }
  if (below) below->wait_idle(kForever);
}

bool OperationQueue::try_enter() {
  TaskPool* const here = pool(depth_of_this_thread());
  return here && here->try_enter();
}

void OperationQueue::leave() { pool(depth_of_this_thread())->leave(); }

// From the top: callbacks of a depth may still need those below it.
void OperationQueue::drain() {
  for (int depth = 0; depth < kDepths; ++depth) {
    TaskPool* here = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      here = pools_[static_cast<std::size_t>(depth)].get();
    }
    if (here) here->drain();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

}  // namespace smddp
