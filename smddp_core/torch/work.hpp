// A collective, under way or done, as torch sees it.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace smddp::torch_binding {

/// The two faces of an operation are completed separately: wait() returns as soon as the operation is done, the
/// future's callbacks run later on a completion lane. They may issue collectives and wait for them (DDP's PowerSGD
/// hook does), so the progress thread must never run them.
///
/// The future is made when it is first asked for: a synchronous call costs none, nor a wake-up of a lane.
///
/// wait() without a limit needs none of its own: the core ends every operation, with an error that says which rank is
/// missing.
class Work final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// @param nested whether the future's value is a List[List[Tensor]] of one list, not a List[Tensor].
  Work(int rank, c10d::OpType op, const char* title, const Tensors& inputs, Tensors outputs, bool nested,
       std::uint64_t sequence)
      : Work(rank, op, title, inputs, std::move(outputs), nested, sequence, at::hasCallbacks()) {}

  // No `override`: see backend.hpp.
  Tensors result() { return outputs_; }
  uint64_t getSequencenumber() const { return sequence_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(type());
      if (done_) settle();
    }
    return future_;
  }

  /// Wakes wait(). If the future has been asked for, hands `post` a task that completes it and runs its callbacks.
  template <class Post>
  void complete(const std::exception_ptr& error, Post post) {
    finish(error);
    bool awaited = false;
    {
      const std::lock_guard<std::mutex> lock(future_mutex_);
      error_ = error;
      done_ = true;
      awaited = static_cast<bool>(future_);
    }
    if (awaited) post([self = c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this)] { self->settle(); });
  }

 private:
  // The base class keeps the title and copies the tensors for the profiler alone.
  Work(int rank, c10d::OpType op, const char* title, const Tensors& inputs, Tensors outputs, bool nested,
       std::uint64_t sequence, bool profiled)
      : c10d::Work(rank, op, profiled ? title : nullptr,
                   profiled ? std::optional<Tensors>(inputs) : std::optional<Tensors>()),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        nested_(nested) {}

  c10::TypePtr type() const {
    const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
    return nested_ ? c10::TypePtr(c10::ListType::create(list)) : list;
  }

  void settle() {
    if (error_)
      future_->setErrorIfNeeded(error_);
    else
      future_->markCompleted(nested_ ? c10::IValue(std::vector<Tensors>{outputs_}) : c10::IValue(outputs_));
  }

  Tensors outputs_;
  std::uint64_t sequence_;
  bool nested_;
  std::mutex future_mutex_;
  bool done_ = false;  // error_ is final
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace smddp::torch_binding
