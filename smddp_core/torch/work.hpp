// A collective under way, as torch sees it.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace smddp::torch_binding {

/// The two faces of an operation are completed separately: wait() returns as soon as the progress thread is done, the
/// future's callbacks run later on a completion lane. They may issue collectives and wait for them (DDP's PowerSGD
/// hook does), so the progress thread must never run them.
///
/// wait() without a limit needs none of its own: the core ends every operation, with an error that says which rank is
/// missing.
class Work final : public c10d::Work {
 public:
  /// @param result value of the future: List[Tensor] or List[List[Tensor]], of type `type`.
  Work(int rank, c10d::OpType op, const char* title, const std::vector<at::Tensor>& inputs,
       std::vector<at::Tensor> outputs, c10::IValue result, const c10::TypePtr& type, std::uint64_t sequence)
      : c10d::Work(rank, op, title, inputs),
        outputs_(std::move(outputs)),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(type)),
        sequence_(sequence) {}

  // No `override`: see backend.hpp.
  std::vector<at::Tensor> result() { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() { return future_; }
  uint64_t getSequencenumber() const { return sequence_; }

  /// Wakes wait(). Progress thread.
  void complete(const std::exception_ptr& error) { finish(error); }

  /// Completes the future and runs its callbacks. Completion lane.
  void complete_future(const std::exception_ptr& error) {
    if (error)
      future_->setErrorIfNeeded(error);
    else
      future_->markCompleted(result_);
  }

 private:
  std::vector<at::Tensor> outputs_;
  c10::IValue result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::uint64_t sequence_;
};

}  // namespace smddp::torch_binding
