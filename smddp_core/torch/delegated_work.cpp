#include "delegated_work.hpp"

#include <ATen/core/ivalue.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "p2p_watch.hpp"
#include "smddp/errors.hpp"

namespace smddp::torch_binding {
namespace {

constexpr std::chrono::milliseconds kLookInterval{20};

// gloo's reduce-scatter has none.
bool has_future(WorkBase& work) {
  try {
    return static_cast<bool>(work.getFuture());
  } catch (const c10::Error&) {
    return false;
  }
}

// The fallback does not know of our failures: a rank that waits in it must hear of them all the same.
void wait_or_fail(WorkBase& work, const Delegated& operation, Communicator& communicator) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
  };
  const auto signal = std::make_shared<Signal>();
  work.getFuture()->addCallback([signal](c10::ivalue::Future&) {
    const std::lock_guard<std::mutex> lock(signal->mutex);
    signal->is_done = true;
    signal->done.notify_all();
  });
  std::unique_lock<std::mutex> lock(signal->mutex);
  while (!signal->done.wait_for(lock, kLookInterval, [&] { return signal->is_done; }))
    communicator.check_alive(operation.name);
}

// `work` cannot say when it is done: a watch ends it if it waits in vain. While the cause is sought the watch stays, so
// that others that miss this rank learn for whom it waits.
bool wait_watched(WorkBase& work, const Delegated& operation, Communicator& communicator, bool any,
                  std::chrono::milliseconds timeout) {
  const P2pWatch watch(work, communicator, operation.name, operation.message, any);
  bool done = false;
  try {
    done = work.wait(timeout);
  } catch (...) {
    rethrow_as_ours(std::current_exception(), operation, communicator);
  }
  if (watch.aborted()) communicator.check_alive(operation.name);
  if (watch.aborted() && any) communicator.check_others(operation.name);
  return done;
}

}  // namespace

void wait_for_all(WorkBase& work, const Delegated& operation, Communicator& communicator) {
  communicator.set_waiting_elsewhere(true);
  try {
    if (!has_future(work)) {
      wait_watched(work, operation, communicator, false, kNoTimeout);
    } else {
      if (!work.isCompleted()) wait_or_fail(work, operation, communicator);
      work.wait();
    }
  } catch (...) {
    rethrow_as_ours(std::current_exception(), operation, communicator);
  }
  communicator.set_waiting_elsewhere(false);
}

DelegatedWork::DelegatedWork(int rank, c10d::OpType op, const char* title, const std::vector<at::Tensor>& inputs,
                             c10::intrusive_ptr<WorkBase> work, Delegated operation,
                             std::shared_ptr<Communicator> communicator)
    : WorkBase(rank, op, title, inputs),
      work_(std::move(work)),
      operation_(std::move(operation)),
      communicator_(std::move(communicator)),
      on_host_(!inputs.empty() && inputs[0].is_cpu()) {}

void DelegatedWork::watch(const c10::intrusive_ptr<DelegatedWork>& self) {
  // Only the profiler needs it. gloo's work between two ranks has no future, and takes longer to say so than a small
  // message.
  if (!self->recordFunctionEndCallback_ || self->on_host_ || !has_future(*self->work_)) return;
  const c10::weak_intrusive_ptr<DelegatedWork> weak(self);
  self->work_->getFuture()->addCallback([weak](c10::ivalue::Future&) {
    if (const auto work = weak.lock()) work->finish(work->work_->exception());
  });
}

bool DelegatedWork::isCompleted() { return work_->isCompleted(); }
bool DelegatedWork::isSuccess() const { return work_->isSuccess(); }
std::exception_ptr DelegatedWork::exception() const { return work_->exception(); }
int DelegatedWork::sourceRank() const { return work_->sourceRank(); }
std::vector<at::Tensor> DelegatedWork::result() { return work_->result(); }
void DelegatedWork::synchronize() { work_->synchronize(); }
void DelegatedWork::abort() { work_->abort(); }
c10::intrusive_ptr<c10::ivalue::Future> DelegatedWork::getFuture() { return work_->getFuture(); }
uint64_t DelegatedWork::getSequencenumber() const { return sequence_of(*work_, 0); }

bool DelegatedWork::wait_or_raise(std::chrono::milliseconds timeout) {
  // Work on a device is not waited for by the host.
  if (!on_host_) {
    const bool done = work_->wait(timeout);
    communicator_->check();
    return done;
  }
  const bool any = opType_ == c10d::OpType::RECVANYSOURCE;
  return wait_watched(*work_, operation_, *communicator_, any, timeout);
}

bool DelegatedWork::wait(std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto ended = [&](bool failed) {
    communicator_->ended(operation_.record, failed);
    if (operation_.record > 0) communicator_->add_exposed(operation_.name, std::chrono::steady_clock::now() - start);
  };
  try {
    const bool done = wait_or_raise(timeout);
    ended(false);
    finish();
    return done;
  } catch (...) {
    const std::exception_ptr theirs = std::current_exception();
    ended(true);
    finish(theirs);
    if (on_host_) rethrow_as_ours(theirs, operation_, *communicator_);
    communicator_->check();
    throw;
  }
}

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<WorkBase>> works)
    : WorkBase(rank, kCoalesced), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool CoalescedWork::isSuccess() const { return !exception(); }

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_)
    if (const std::exception_ptr error = work->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> tensors = work->result();
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

void CoalescedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  finish();
  return true;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [works = works_](c10::ivalue::Future&) {
        c10::List<at::Tensor> all;
        for (const auto& work : works)
          for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
        return c10::IValue(all);
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace smddp::torch_binding
