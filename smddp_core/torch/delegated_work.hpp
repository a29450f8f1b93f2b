// Operations that another back end carries out, under our name.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "compat.hpp"
#include "delegated_failure.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// An operation of the fallback. The profiler sees it as smddp's, from issue to completion. Whoever waits for it hears
/// of what ends the group meanwhile, and of a rank's death, and a failure of the fallback's ends the group.
class DelegatedWork final : public WorkBase {
 public:
  DelegatedWork(int rank, c10d::OpType op, const char* title, const std::vector<at::Tensor>& inputs,
                c10::intrusive_ptr<WorkBase> work, Delegated operation, std::shared_ptr<Communicator> communicator);

  ~DelegatedWork();

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
  bool wait_untold(std::chrono::milliseconds timeout);
  bool wait_on_host(std::chrono::milliseconds timeout);
  void wait_or_fail(std::chrono::milliseconds timeout);
  std::string out_of_patience(std::chrono::milliseconds timeout) const;

  const c10::intrusive_ptr<WorkBase> work_;
  const Delegated operation_;
  const std::shared_ptr<Communicator> communicator_;
  const bool on_host_;
  const bool tells_;  // has a future, and knows when it is done
  std::atomic<bool> waited_{false};
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
