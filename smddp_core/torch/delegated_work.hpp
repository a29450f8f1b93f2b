// Operations that another back end carries out, under our name.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "compat.hpp"
#include "delegated_failure.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// Waits for an operation of the fallback on the host that all ranks take part in. Hears of what ends the group
/// meanwhile, and of a rank's death; a failure of the fallback's ends the group.
void wait_for_all(WorkBase& work, const Delegated& operation, Communicator& communicator);

/// An operation of the fallback between two ranks, or any of a device's. The profiler sees it as smddp's, from issue to
/// completion. For whoever waits for one on the host, what wait_for_all() says holds.
class DelegatedWork final : public WorkBase {
 public:
  DelegatedWork(int rank, c10d::OpType op, const char* title, const std::vector<at::Tensor>& inputs,
                c10::intrusive_ptr<WorkBase> work, Delegated operation, std::shared_ptr<Communicator> communicator);

  // No `override`: see backend.hpp.
  bool isCompleted();
  bool isSuccess() const;
  std::exception_ptr exception() const;
  int sourceRank() const;
  std::vector<at::Tensor> result();
  void synchronize();
  bool wait(std::chrono::milliseconds timeout = kNoTimeout);
  void abort();
  c10::intrusive_ptr<c10::ivalue::Future> getFuture();
  uint64_t getSequencenumber() const;

  /// Ends the profiler's range of `self` when the fallback is done, if the fallback can tell; else wait() does.
  static void watch(const c10::intrusive_ptr<DelegatedWork>& self);

 private:
  bool wait_or_raise(std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<WorkBase> work_;
  const Delegated operation_;
  const std::shared_ptr<Communicator> communicator_;
  const bool on_host_;
};

/// All operations issued between startCoalescing() and endCoalescing(), as one.
class CoalescedWork final : public WorkBase {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<WorkBase>> works);

  bool isCompleted();
  bool isSuccess() const;
  std::exception_ptr exception() const;
  std::vector<at::Tensor> result();
  void synchronize();
  bool wait(std::chrono::milliseconds timeout = kNoTimeout);
  void abort();
  /// Value: List[Tensor], the results of all operations in the order of their issue.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture();

 private:
  const std::vector<c10::intrusive_ptr<WorkBase>> works_;
};

}  // namespace smddp::torch_binding
