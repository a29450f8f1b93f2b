// A collective, under way or done, as torch sees it.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "device.hpp"
#include "exposure.hpp"
#include "runtime/operation_queue.hpp"
#include "smddp/errors.hpp"

namespace smddp::torch_binding {

/// An operation's name in its title for the profiler, "smddp:all_reduce".
inline const char* name_in(const char* title) {
  const char* const colon = std::strchr(title, ':');
  return colon ? colon + 1 : title;
}

/// The two faces of an operation are completed separately: wait() returns as soon as the operation is done, then the
/// future is completed, which runs its callbacks. They may issue collectives and wait for them, as DDP's PowerSGD hook
/// does: see OperationQueue.
///
/// The future is made when it is first asked for: a synchronous call costs none.
///
/// wait() without a limit needs none of its own: the core ends every operation, with an error that says which rank is
/// missing.
class Work final : public WorkBase {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// @param lists 0 if the future's value is a List[Tensor]; else a List[List[Tensor]] of this many lists of equal
  /// length.
  /// @param device the operation's place on a device, if its tensors are on one.
  /// @param queue where the calling thread is about to put it.
  Work(int rank, c10d::OpType op, const char* title, at::TensorList inputs, Tensors outputs, std::size_t lists,
       std::uint64_t sequence, std::shared_ptr<DeviceCall> device, const OperationQueue& queue)
      : Work(rank, op, title, inputs, std::move(outputs), lists, sequence, std::move(device), queue,
             at::hasCallbacks()) {}

  /// As for every back end, the future of an operation that was waited for has its value: DDP's reducer reads it
  /// without waiting again, in join().
  /// @throws UsageError in a callback that the operation itself waits for.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) {
    if (born_complete_ && !error_) return true;
    if (!isCompleted() && OperationQueue::depth_of_this_thread(queue_) > depth_)
      throw UsageError(
          "smddp: a callback waits for an operation that starts only when the callback has returned: it may wait for "
          "those before its own, and for those that it issues");
    const bool done = timed_wait(timeout);
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard<std::mutex> lock(future_mutex_);
      future = future_;
    }
    if (future) future->wait();
    return done;
  }

  // No `override`: see backend.hpp.
  Tensors result() { return outputs_; }
  uint64_t getSequencenumber() const { return sequence_; }

  /// The current stream waits for the outputs, the host does not. wait() ends with this.
  void synchronize() {
    if (device_) device_->block_current_stream();
  }

  /// From now on, time spent in wait() counts as exposed. So does what is left of an operation whose future was asked
  /// for in a backward pass when that is over: DDP then waits for it, and a future does not say who waits.
  void time_waits(std::shared_ptr<Exposure> exposure, const std::string& title, bool delegated) {
    exposure_ = std::move(exposure);
    delegated_ = delegated;
    kind_ = kind_of(title);
    title_ = name_in(title.c_str());
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() {
    if (exposure_ && !device_) time_end_of_backward();
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
      const auto devices = device_ ? std::vector<c10::Device>{device_->stream().device()} : std::vector<c10::Device>();
      future_ = c10::make_intrusive<c10::ivalue::Future>(type(), devices);
      if (done_) settle();
    }
    return future_;
  }

  /// complete(), before anybody has seen this object: there is nobody to wake.
  void complete_at_birth(const std::exception_ptr& error) {
    born_complete_ = done_ = true;
    error_ = error;
    // What finish() does takes a lock and looks for waiters.
    if (recordFunctionEndCallback_) return finish(error);
    completed_ = true;
    exception_ = error;
  }

  /// Wakes wait(). True if the future has been asked for: then settle() must follow.
  bool complete(const std::exception_ptr& error) {
    bool awaited = false;
    {
      // Before finish(): whoever that wakes may ask for the future, and must find it complete.
      const std::lock_guard<std::mutex> lock(future_mutex_);
      error_ = error;
      done_ = true;
      awaited = static_cast<bool>(future_);
    }
    if (blocks_) exposed_ended();
    finish(error);
    return awaited;
  }

  /// Completes the future and runs its callbacks.
  void settle() {
    if (error_) {
      future_->setErrorIfNeeded(error_);
      return;
    }
    // Callbacks are to find the outputs behind the stream that is current when the future is completed.
    Optional<c10::StreamGuard> guard;
    if (device_) guard.emplace(device_->stream());
    future_->markCompleted(value());
  }

 private:
  bool timed_wait(std::chrono::milliseconds timeout) {
    if (!exposure_ || isCompleted()) return WorkBase::wait(timeout);
    exposure_->begin();
    try {
      const bool done = WorkBase::wait(timeout);
      exposed_ended();
      return done;
    } catch (...) {
      exposed_ended();
      if (timeout == kNoTimeout || isCompleted()) throw;
      // torch's words name neither the operation nor the rank. It goes on, and the group lives.
      const std::string missing = exposure_->communicator().waiting_for();
      throw TimeoutError(title_ + ": not done after " + std::to_string(timeout.count()) +
                         " ms, the limit of this wait(); it goes on" +
                         (missing.empty() ? "" : ", waiting for " + missing));
    }
  }

  void exposed_ended() {
    if (delegated_)
      exposure_->end(title_);
    else
      exposure_->end(kind_);
  }

  void time_end_of_backward() {
    using Weak = c10::weak_intrusive_ptr<Work>;
    at_end_of_backward([self = Weak(c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this))] {
      const auto work = self.lock();
      if (!work) return;
      const std::lock_guard<std::mutex> lock(work->future_mutex_);
      if (work->done_ || work->blocks_) return;
      work->blocks_ = true;
      work->exposure_->begin();
    });
  }

  // By the title, which tells coalesced operations apart.
  static OpKind kind_of(const std::string& title) {
    if (title.find("scatter") != std::string::npos) return OpKind::reduce_scatter;
    if (title.find("gather") != std::string::npos) return OpKind::all_gather;
    if (title.find("reduce") != std::string::npos) return OpKind::all_reduce;
    return title.find("broadcast") != std::string::npos ? OpKind::broadcast : OpKind::barrier;
  }

  // The base class keeps the title and copies the tensors for the profiler alone.
  Work(int rank, c10d::OpType op, const char* title, at::TensorList inputs, Tensors outputs, std::size_t lists,
       std::uint64_t sequence, std::shared_ptr<DeviceCall> device, const OperationQueue& queue, bool profiled)
      : WorkBase(rank, op, profiled ? title : nullptr,
                 profiled ? Optional<Tensors>(inputs.vec()) : Optional<Tensors>()),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        lists_(lists),
        device_(std::move(device)),
        queue_(queue.id()),
        depth_(queue.depth_of_this_thread()) {}

  c10::TypePtr type() const {
    const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
    return lists_ > 0 ? c10::TypePtr(c10::ListType::create(list)) : list;
  }

  c10::IValue value() const {
    if (lists_ == 0) return outputs_;
    const auto length = static_cast<std::ptrdiff_t>(outputs_.size() / lists_);
    std::vector<Tensors> lists;
    for (auto at = outputs_.begin(); at != outputs_.end(); at += length) lists.emplace_back(at, at + length);
    return lists;
  }

  Tensors outputs_;
  std::uint64_t sequence_;
  std::size_t lists_;
  std::shared_ptr<DeviceCall> device_;
  std::uint64_t queue_;
  int depth_;
  std::shared_ptr<Exposure> exposure_;
  bool delegated_ = false;
  OpKind kind_ = OpKind::barrier;
  std::string title_;
  std::mutex future_mutex_;
  bool done_ = false;    // error_ is final
  bool blocks_ = false;  // a backward pass is over, and waits for this; final when done_
  bool born_complete_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace smddp::torch_binding
