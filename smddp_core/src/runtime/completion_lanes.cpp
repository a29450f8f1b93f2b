#include "runtime/completion_lanes.hpp"

#include <algorithm>
#include <utility>

namespace smddp {
namespace {

// The lane whose thread this is; -1 on the program's own threads.
thread_local int current_lane = -1;

}  // namespace

int CompletionLanes::lane_of_this_thread() { return std::min(current_lane + 1, kLanes - 1); }

void CompletionLanes::post(int lane, std::function<void()> task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  auto& pool = lanes_[static_cast<std::size_t>(lane)];
  if (!pool) pool = std::make_unique<TaskPool>(1, "smddp-callback");
  pool->post([lane, task = std::move(task)] {
    current_lane = lane;
    task();
  });
}

// From the top: callbacks of a lane may still need the lanes below it.
void CompletionLanes::drain() {
  for (auto& lane : lanes_) {
    TaskPool* pool = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pool = lane.get();
    }
    if (pool) pool->drain();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

}  // namespace smddp
