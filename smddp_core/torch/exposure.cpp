#include "exposure.hpp"

#if SMDDP_TORCH_AT_LEAST(2, 0)
#include <torch/csrc/autograd/engine.h>
#endif

namespace smddp::torch_binding {

void Exposure::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (blocked_++ == 0) since_ = Clock::now();
}

Exposure::Clock::duration Exposure::stretch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto start = std::exchange(since_, Clock::now());
  --blocked_;
  return since_ - start;
}

#if SMDDP_TORCH_AT_LEAST(2, 0)
void at_end_of_backward(std::function<void()> callback) {
  if (torch::autograd::get_current_graph_task_id() >= 0)
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}
#else
void at_end_of_backward(const std::function<void()>&) {}
#endif

}  // namespace smddp::torch_binding
