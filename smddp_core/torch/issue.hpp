// How an operation of the core gets its place in the queue: Backend's templates.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "backend.hpp"
#include "gil.hpp"

namespace smddp::torch_binding {

// What an operation needs as long as it runs, the caller's thread or the progress thread alike. Returns what went
// wrong.
template <class Body>
std::exception_ptr Backend::carry_out(std::uint64_t sequence, std::chrono::milliseconds timeout, DeviceCall* device,
                                      const Tensors& tensors, const Place& place, const Body& body) {
  try {
    communicator_->set_place(sequence, place.delegated, place.blocking);
    // Copies in and out of non-contiguous tensors are not part of anyone's graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Optional<c10::StreamGuard> guard;
    if (device) {
      guard.emplace(device->stream());
      device->begin();
    }
    body(timeout);
    if (device) device->end(tensors);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

template <class Opts>
Backend::Issue Backend::issue_of(c10d::OpType op, const char* title, const Tensors& inputs, const Tensors& outputs,
                                 const Opts& opts) const {
  // Unset is negative in some releases and zero in others.
  const auto timeout = opts.timeout.count() > 0 ? opts.timeout : options_->timeout;
  return {op, title, inputs, outputs, 0, is_synchronous(opts, 0), timeout, device_of(outputs)};
}

template <class Body>
Backend::WorkPtr Backend::issue(Issue what, Body body) {
  refuse_after_fork(what.title);
  std::shared_ptr<DeviceCall> device;
  Tensors on_device;
  if (what.device) {
    device = std::make_shared<DeviceCall>(streams_.of(*what.device));
    on_device = what.inputs;
    on_device.insert(on_device.end(), what.outputs.begin(), what.outputs.end());
  }
  // Number and place in the queue must agree.
  std::unique_lock<std::mutex> lock(issue_mutex_);
  TORCH_CHECK(!shut_down_, "smddp: the process group was destroyed");
  auto work = c10::make_intrusive<Work>(getRank(), what.op, what.title, what.inputs, std::move(what.outputs),
                                        what.lists, ++issued_, device, queue_);
  Place place{delegated_count_, what.synchronous};
  if (what.synchronous && !device && queue_.try_enter()) {
    lock.unlock();
    const GilRelease release;
    work->complete_at_birth(carry_out(work->getSequencenumber(), what.timeout, nullptr, on_device, place, body));
    queue_.leave();
    return collect(work);
  }
  // Whoever waits for it says so himself.
  place.blocking = false;
  work->time_waits(communicator_, what.title);
  queue_.post(
      [this, work, device, place, timeout = what.timeout, tensors = std::move(on_device), body = std::move(body)] {
        return work->complete(carry_out(work->getSequencenumber(), timeout, device.get(), tensors, place, body));
      },
      [work] { work->settle(); });
  return collect(work);
}

}  // namespace smddp::torch_binding
