// The time in which the program is blocked by a group's operations.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "compat.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// Once, however many are blocked at a time: each stretch counts for the operation whose end ends it. Any thread.
class Exposure {
 public:
  explicit Exposure(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  const Communicator& communicator() const { return *communicator_; }

  /// Somebody is blocked until end() is called for the operation.
  void begin();

  template <class Operation>  // OpKind, or the name of another library's
  void end(const Operation& operation) {
    communicator_->add_exposed(operation, stretch());
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::duration stretch();

  std::shared_ptr<Communicator> communicator_;
  std::mutex mutex_;
  int blocked_ = 0;
  Clock::time_point since_;  // while somebody is
};

/// In a backward pass, calls `callback` when all gradients are computed, before the callbacks that are installed later.
/// Elsewhere, never; nor before torch 2.0, which does not tell.
#if SMDDP_TORCH_AT_LEAST(2, 0)
void at_end_of_backward(std::function<void()> callback);
#else
void at_end_of_backward(const std::function<void()>& callback);
#endif

}  // namespace smddp::torch_binding
