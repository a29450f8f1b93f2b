// The process group backend `smddp`: chooses between the core and the fallback, and puts operations in order.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "residuals.hpp"
#include "runtime/completion_lanes.hpp"
#include "runtime/task_pool.hpp"
#include "smddp/communicator.hpp"
#include "work.hpp"

namespace smddp::torch_binding {

/// Operations of a group run one at a time, in the order they were issued, on one progress thread. A synchronous one
/// (`asyncOp` unset, from torch 2.4 on) that finds nothing queued runs on the caller's thread instead: a change of
/// threads costs more than a small all-reduce.
///
/// Ours: all-reduce, reduce-scatter (dense CPU tensors of the core's types and reductions), broadcast, all-gather (any
/// dense CPU tensor), their single-tensor and coalesced forms, barrier. All else is the fallback's (gloo). CUDA tensors
/// are refused.
///
/// No `override` below: some of these are not virtual in every torch release.
class Backend final : public c10d::Backend {
 public:
  /// @param fallback a backend of the same ranks for what is not ours. @param settings see Env::from_process().
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
          const std::string& name, c10::intrusive_ptr<c10d::Backend> fallback, const Settings& settings);
  ~Backend();

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const { return "smddp"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  void setTimeout(std::chrono::milliseconds timeout);
  void setSequenceNumberForGroup() {}
  uint64_t getSequenceNumberForGroup() { return issued_; }
  c10d::ErrorType getError();
  void abort();
  void shutdown();

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = c10d::BroadcastOptions());
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = c10d::AllreduceOptions());
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts = c10d::AllreduceCoalescedOptions());
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions());
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions());
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions());
  WorkPtr barrier(const c10d::BarrierOptions& opts = c10d::BarrierOptions());

  // The fallback's.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts = c10d::AllreduceOptions());
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = c10d::ReduceOptions());
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts = c10d::GatherOptions());
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts = c10d::ScatterOptions());
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts = c10d::AllToAllOptions());
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts = c10d::AllToAllOptions());
  WorkPtr send(Tensors& tensors, int destination, int tag);
  WorkPtr recv(Tensors& tensors, int source, int tag);
  WorkPtr recvAnysource(Tensors& tensors, int tag);

  /// Ends all groups of the process as ~Backend does. Called before the interpreter is torn down: a thread that lets go
  /// of a tensor after that would be killed in the middle of it.
  static void stop_all();

  /// "host", "flat", ...: see smddp::Path. For tests and logs.
  std::string path() const;

  /// See Communicator.
  std::string stats() const { return communicator_->stats(); }
  std::string flight_recorder() const { return communicator_->flight_recorder(); }

 private:
  /// What torch is told about an operation.
  struct Issue {
    c10d::OpType op;
    const char* title;
    const Tensors& inputs;
    Tensors outputs;
    bool nested;  ///< The outputs are one list of a list of lists.
    bool synchronous;
    std::chrono::milliseconds timeout;
  };

  template <class Opts>
  Issue issue_of(c10d::OpType op, const char* title, const Tensors& inputs, const Tensors& outputs,
                 const Opts& opts) const;
  template <class Body>
  WorkPtr issue(Issue what, Body body);
  template <class Body>
  void carry_out(Work& work, int lane, std::chrono::milliseconds timeout, const Body& body);
  WorkPtr issue_all_reduce(Issue what, const c10d::ReduceOp& op);
  WorkPtr gather_all(c10d::OpType op, Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr scatter_all(c10d::OpType op, Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts);
  void gather_into(const at::Tensor& output, const at::Tensor& input, std::chrono::milliseconds timeout);
  void scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp reduce,
                    std::chrono::milliseconds timeout);
  c10d::Backend& fallback(const Tensors& tensors, const char* operation);
  void stop();
  /// @throws UsageError in the child of a fork, where neither threads nor connections are this process's.
  void refuse_after_fork(const char* operation) const;

  c10::intrusive_ptr<c10d::Backend::Options> options_;
  c10::intrusive_ptr<c10d::Backend> fallback_;
  std::unique_ptr<Communicator> communicator_;
  const int pid_;
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<bool> shut_down_{false};
  std::mutex issue_mutex_;
  Residuals residuals_;
  CompletionLanes completions_;
  TaskPool progress_;
};

}  // namespace smddp::torch_binding
