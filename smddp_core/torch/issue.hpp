// How an operation of the core gets its place in the queue: Backend's templates.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "backend.hpp"
#include "gil.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {

// What an operation needs as long as it runs, the caller's thread or the progress thread alike. Returns what went
// wrong.
template <class Body>
std::exception_ptr Backend::carry_out(DeviceCall* device, const Tensors& on_device, bool blocking, const Body& body) {
  try {
    communicator_->set_blocking(blocking);
    // Copies in and out of non-contiguous tensors are not part of anyone's graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Optional<c10::StreamGuard> guard;
    if (device) {
      guard.emplace(device->stream());
      device->begin();
    }
    body();
    if (device) device->end(on_device);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

template <class Opts>
Backend::Issue Backend::issue_of(c10d::OpType op, const char* title, TensorList inputs, TensorList outputs,
                                 const Opts& opts) const {
  // Unset is negative in some releases and zero in others.
  const auto timeout = opts.timeout.count() > 0 ? opts.timeout : options_->timeout;
  return {op, title, inputs, outputs, 0, is_synchronous(opts, 0), timeout, common_device(outputs)};
}

template <class Body>
Backend::WorkPtr Backend::issue(const Issue& what, Body body) {
  refuse_after_fork(name_in(what.title));
  std::shared_ptr<DeviceCall> device;
  if (what.device) device = std::make_shared<DeviceCall>(streams_.of(*what.device));
  // Number and place in the queue must agree.
  std::unique_lock<std::mutex> lock(issue_mutex_);
  TORCH_CHECK(!shut_down_, "smddp: the process group was destroyed");
  auto work = c10::make_intrusive<Work>(getRank(), what.op, what.title, what.inputs, what.outputs.vec(), what.lists,
                                        ++issued_, device, queue_);
  if (what.synchronous && !device && queue_.try_enter()) {
    lock.unlock();
    const GilRelease release;
    using Clock = std::chrono::steady_clock;
    const auto start = what.delegated ? Clock::now() : Clock::time_point();
    work->complete_at_birth(carry_out(nullptr, {}, true, [&] { body(what.inputs, what.outputs, what.timeout); }));
    if (what.delegated) communicator_->add_exposed(name_in(what.title), Clock::now() - start);
    queue_.leave();
    return collect(work);
  }
  // Whoever waits for it says so himself.
  work->time_waits(exposure_, what.title, what.delegated);
  queue_.post(
      [this, work, device, timeout = what.timeout, inputs = what.inputs.vec(), outputs = what.outputs.vec(),
       body = std::move(body)]() mutable {
        Tensors on_device;
        if (device) on_device = join(inputs, outputs);
        return work->complete(carry_out(device.get(), on_device, false, [&] { body(inputs, outputs, timeout); }));
      },
      [work] { work->settle(); });
  return collect(work);
}

}  // namespace smddp::torch_binding
