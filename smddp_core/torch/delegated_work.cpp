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

// gloo's reduce-scatter has none. Nor has its work between two ranks, which is not asked: what it throws takes longer
// to make than a small message.
bool has_future(WorkBase& work, c10d::OpType op, bool on_host) {
  if (on_host && c10d::isP2POp(op)) return false;
  try {
    return static_cast<bool>(work.getFuture());
  } catch (const c10::Error&) {
    return false;
  }
}

// The caller's limit is over: the operation goes on, and the group lives.
class OutOfPatience : public TimeoutError {
  using TimeoutError::TimeoutError;
};

}  // namespace

DelegatedWork::DelegatedWork(int rank, c10d::OpType op, const char* title, const std::vector<at::Tensor>& inputs,
                             c10::intrusive_ptr<WorkBase> work, Delegated operation,
                             std::shared_ptr<Communicator> communicator)
    : WorkBase(rank, op, title, inputs),
      work_(std::move(work)),
      operation_(std::move(operation)),
      communicator_(std::move(communicator)),
      on_host_(!inputs.empty() && inputs[0].is_cpu()),
      tells_(has_future(*work_, op, on_host_)) {}

// Nobody waited for it. Work between two ranks cannot tell.
DelegatedWork::~DelegatedWork() {
  if (operation_.record > 0 && !c10d::isP2POp(opType_) && work_->isCompleted())
    communicator_->ended(operation_.record, work_->exception() != nullptr, {});
}

// The fallback does not know of our failures: a rank that waits in it must hear of them all the same.
void DelegatedWork::wait_or_fail(std::chrono::milliseconds timeout) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
  };
  const auto signal = std::make_shared<Signal>();
  work_->getFuture()->addCallback([signal](c10::ivalue::Future&) {
    const std::lock_guard<std::mutex> lock(signal->mutex);
    signal->is_done = true;
    signal->done.notify_all();
  });
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(signal->mutex);
  while (!signal->done.wait_for(lock, kLookInterval, [&] { return signal->is_done; })) {
    communicator_->check_alive(operation_.name, operation_.number);
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() - start > timeout)
      throw OutOfPatience(out_of_patience(timeout));
  }
}

std::string DelegatedWork::out_of_patience(std::chrono::milliseconds timeout) const {
  const std::vector<int> missing = communicator_->absent(operation_.number);
  return operation_.name + ": not done after " + std::to_string(timeout.count()) +
         " ms, the limit of this wait(); it goes on" +
         (missing.empty() ? "" : ", waiting for " + communicator_->topology().who(missing));
}

void DelegatedWork::watch(const c10::intrusive_ptr<DelegatedWork>& self) {
  // Only the profiler needs it.
  if (!self->recordFunctionEndCallback_ || !self->tells_) return;
  const c10::weak_intrusive_ptr<DelegatedWork> weak(self);
  self->work_->getFuture()->addCallback([weak](c10::ivalue::Future&) {
    if (const auto work = weak.lock()) work->finish(work->work_->exception());
  });
}

bool DelegatedWork::isCompleted() { return waited_ || work_->isCompleted(); }
bool DelegatedWork::isSuccess() const { return work_->isSuccess(); }
std::exception_ptr DelegatedWork::exception() const { return work_->exception(); }
int DelegatedWork::sourceRank() const { return work_->sourceRank(); }
std::vector<at::Tensor> DelegatedWork::result() { return work_->result(); }
void DelegatedWork::synchronize() { work_->synchronize(); }
void DelegatedWork::abort() { work_->abort(); }
c10::intrusive_ptr<c10::ivalue::Future> DelegatedWork::getFuture() { return work_->getFuture(); }
uint64_t DelegatedWork::getSequencenumber() const { return sequence_of(*work_, 0); }

bool DelegatedWork::wait_on_host(std::chrono::milliseconds timeout) {
  if (!tells_) return wait_untold(timeout);
  if (!work_->isCompleted()) wait_or_fail(timeout);
  return work_->wait();
}

bool DelegatedWork::wait_untold(std::chrono::milliseconds timeout) {
  // gloo would wait for its messages again.
  const bool collective = !c10d::isP2POp(opType_);
  if (collective && waited_) return true;
  const bool any = opType_ == c10d::OpType::RECVANYSOURCE;
  const P2pWatch watch(*work_, *communicator_, operation_.name, operation_.message, any);
  const bool done = work_->wait(timeout);
  if (watch.aborted()) communicator_->check_alive(operation_.name, 0);
  if (watch.aborted() && any) communicator_->check_others(operation_.name);
  if (collective) waited_ = true;
  return done;
}

bool DelegatedWork::wait(std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  try {
    // Work on a device is not waited for by the host.
    const bool done = on_host_ ? wait_on_host(timeout) : work_->wait(timeout);
    // What the ranks told one another when they began: it may be that they did not mean the same.
    if (operation_.number > 0 || !on_host_) communicator_->check();
    communicator_->ended(operation_.record, false, std::chrono::steady_clock::now() - start);
    finish();
    return done;
  } catch (const OutOfPatience&) {
    throw;
  } catch (...) {
    const std::exception_ptr theirs = std::current_exception();
    communicator_->ended(operation_.record, true, std::chrono::steady_clock::now() - start);
    finish(theirs);
    if (!on_host_) {
      communicator_->check();
      throw;
    }
    rethrow_as_ours(theirs, operation_, *communicator_);
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
