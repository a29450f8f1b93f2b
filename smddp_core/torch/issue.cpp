#include "issue.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include "gil.hpp"

namespace smddp::torch_binding {

// What an operation needs as long as it runs, the caller's thread or the progress thread alike. Returns what went
// wrong.
std::exception_ptr Backend::carry_out(DeviceCall* device, bool blocking, const Body& body, TensorList inputs,
                                      TensorList outputs, std::chrono::milliseconds timeout) {
  try {
    communicator_->set_blocking(blocking);
    // Copies in and out of non-contiguous tensors are not part of anyone's graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Optional<c10::StreamGuard> guard;
    if (device) {
      guard.emplace(device->stream());
      device->begin();
    }
    body(inputs, outputs, timeout);
    if (device) device->end(join(inputs, outputs));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

Backend::Turn Backend::take_turn(const Issue& what) {
  refuse_after_fork(name_in(what.title));
  std::shared_ptr<DeviceCall> device;
  if (what.device) device = std::make_shared<DeviceCall>(streams_.of(*what.device));
  // Number and place in the queue must agree.
  std::unique_lock<std::mutex> lock(issue_mutex_);
  TORCH_CHECK(!shut_down_, "smddp: the process group was destroyed");
  auto work = c10::make_intrusive<Work>(getRank(), what.op, what.title, what.inputs, what.outputs.vec(), what.lists,
                                        ++issued_, device, queue_);
  const bool is_now = what.synchronous && !device && queue_.try_enter();
  return {std::move(work), std::move(device), is_now, std::move(lock)};
}

Backend::WorkPtr Backend::carry_out_now(const Issue& what, Turn& turn, const Body& body) {
  turn.lock.unlock();
  const GilRelease release;
  using Clock = std::chrono::steady_clock;
  const auto start = what.delegated ? Clock::now() : Clock::time_point();
  turn.work->complete_at_birth(carry_out(nullptr, true, body, what.inputs, what.outputs, what.timeout));
  if (what.delegated) communicator_->add_exposed(name_in(what.title), Clock::now() - start);
  queue_.leave();
  return collect(std::move(turn.work));
}

Backend::WorkPtr Backend::post(const Issue& what, Turn& turn, Body body) {
  const c10::intrusive_ptr<Work> work = std::move(turn.work);
  // Whoever waits for it says so himself.
  work->time_waits(exposure_, what.title, what.delegated);
  queue_.post(
      [this, work, device = std::move(turn.device), timeout = what.timeout, inputs = what.inputs.vec(),
       outputs = what.outputs.vec(), body = std::move(body)] {
        return work->complete(carry_out(device.get(), false, body, inputs, outputs, timeout));
      },
      [work] { work->settle(); });
  return collect(work);
}

}  // namespace smddp::torch_binding
