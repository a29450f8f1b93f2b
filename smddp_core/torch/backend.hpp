// The process group backend `smddp`: chooses between the core and other back ends, and puts operations in order.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compat.hpp"
#include "delegated_failure.hpp"
#include "device.hpp"
#include "device_watch.hpp"
#include "rails.hpp"
#include "residuals.hpp"
#include "runtime/birthplace.hpp"
#include "runtime/operation_queue.hpp"
#include "smddp/communicator.hpp"
#include "smddp/env.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace smddp::torch_binding {

class Backend;

/// Back ends of the same ranks for what is not ours.
struct Fallbacks {
  c10::intrusive_ptr<BackendBase> host;    ///< For CPU tensors: gloo.
  c10::intrusive_ptr<BackendBase> device;  ///< For tensors on a GPU: NCCL; null where ranks share a GPU or have none.
  c10::intrusive_ptr<BackendBase> local;   ///< The same among the ranks of this host; null where it is not needed.
  bool exchange = false;                   ///< Whether all-reduces on GPUs cross between hosts by our exchange.
};

/// What only Python knows. Called without the interpreter's lock.
struct Interpreter {
  /// Makes the fallbacks of a new group: called by all its ranks. While they wait for one another, `watch` is called:
  /// what that throws ends the waiting.
  Fallbacks (*make_fallbacks)(const c10::intrusive_ptr<c10d::Store>& store, const Topology& topology, When gpu_exchange,
                              std::chrono::milliseconds timeout, const std::function<void()>& watch);
  /// " while handling ValueError: ..." in an `except` or `finally` that an exception led to, else "".
  std::string (*handling)();
};

/// What a group is made of beside its place in the store.
struct GroupOptions {
  std::chrono::milliseconds timeout;
  std::string name;
  Settings settings;           ///< See Env::from_process().
  std::vector<int> job_ranks;  ///< See CommunicatorOptions.
  std::string refusal;         ///< See CommunicatorOptions.
};

/// Operations of a group run one at a time, in the order they were issued, those of callbacks right after the
/// callback's own (see OperationQueue), on a progress thread. A synchronous one (`asyncOp` unset, see compat.hpp)
/// that finds nothing queued runs on the caller's thread instead: a change of threads costs more than a small
/// all-reduce.
///
/// Ours: all-reduce, reduce-scatter (dense tensors of the core's types and reductions), broadcast, all-gather (any
/// dense tensor), their single-tensor and coalesced forms, barrier. All else is a fallback's.
///
/// Tensors on a device are the device fallback's (NCCL) where there is one, but for all-reduces over several hosts, see
/// Rails. Where there is none, since several ranks share a GPU, say, our operations pass through host memory: see
/// DeviceCall.
///
/// No `override` below: some of these are not virtual in every torch release.
class Backend final : public BackendBase {
 public:
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, GroupOptions options,
          const Interpreter& interpreter);
  ~Backend();

  using Tensors = std::vector<at::Tensor>;
  using Work = torch_binding::Work;  // not the base class's, up to 1.12
  using WorkPtr = c10::intrusive_ptr<WorkBase>;

  const std::string getBackendName() const { return "smddp"; }
  /// A copy: torch writes the name and timeout of a new group into its parent's options when it splits one.
  c10::intrusive_ptr<BackendBase::Options> getBackendOptions();
  void setTimeout(std::chrono::milliseconds timeout);
  void setSequenceNumberForGroup() {}
  uint64_t getSequenceNumberForGroup() { return issued_; }
  ErrorType getError();
  void abort();
  void shutdown();

  bool supportsSplitting() const { return true; }
  /// A group of `ranks` of this one; null for other ranks. Called by all ranks of this group.
  c10::intrusive_ptr<BackendBase> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                        const c10::intrusive_ptr<BackendBase::Options>& options);
  /// A group of `size` ranks that meet at `store`, from this group and others.
  c10::intrusive_ptr<BackendBase> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                        const c10::intrusive_ptr<BackendBase::Options>& options, const int& rank,
                                        const int& size);

  /// What is issued from here on is one piece of work, which endCoalescing() returns.
  void startCoalescing();
  WorkPtr endCoalescing();
#if !SMDDP_TORCH_AT_LEAST(2, 0)
  void endCoalescing(std::vector<WorkPtr>&) { endCoalescing(); }
#endif

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = c10d::BroadcastOptions());
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = c10d::AllreduceOptions());
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts = c10d::AllreduceCoalescedOptions());
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = c10d::ReduceOptions());
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts = c10d::AllgatherOptions());
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
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
  void monitoredBarrier(const c10d::BarrierOptions& opts = c10d::BarrierOptions(), bool wait_all_ranks = false);

  /// Ends all groups of the process as ~Backend does. Called before the interpreter is torn down: a thread that lets go
  /// of a tensor after that would be killed in the middle of it.
  /// @param reason told to ranks that miss this one; may be "".
  static void stop_all(const std::string& reason);

  /// @throws PeerError when a rank of a group that is being made is known to be dead by another group of this process.
  static void check_known_dead(const GroupOptions& fresh);

  /// "host", "flat", ...: see smddp::Path. For tests and logs.
  std::string path() const;

  /// See Communicator.
  std::string stats() const { return communicator_->stats(); }
  std::string flight_recorder() const { return communicator_->flight_recorder(); }

 private:
  /// What torch is told about an operation. The tensors are the caller's, as long as issue() has not returned.
  struct Issue {
    c10d::OpType op;
    const char* title;
    at::TensorList inputs;
    at::TensorList outputs;
    std::size_t lists;  ///< See Work.
    bool synchronous;
    std::chrono::milliseconds timeout;
    Optional<c10::Device> device;
    bool delegated = false;
  };

  /// Carries an operation out, on its inputs and outputs.
  using Body = std::function<void(at::TensorList, at::TensorList, std::chrono::milliseconds timeout)>;

  /// An operation that has its number, and its place in the queue as soon as it is posted.
  struct Turn {
    c10::intrusive_ptr<Work> work;
    std::shared_ptr<DeviceCall> device;
    bool is_now;  ///< The calling thread has entered the queue.
    std::unique_lock<std::mutex> lock;
  };

  // issue.hpp
  template <class Opts>
  Issue issue_of(c10d::OpType op, const char* title, at::TensorList inputs, at::TensorList outputs,
                 const Opts& opts) const;
  /// @param call what Body says.
  template <class Call>
  WorkPtr issue(const Issue& what, Call call);

  // issue.cpp
  Turn take_turn(const Issue& what);
  WorkPtr carry_out_now(const Issue& what, Turn& turn, const Body& body);
  WorkPtr post(const Issue& what, Turn& turn, Body body);
  std::exception_ptr carry_out(DeviceCall* device, bool blocking, const Body& body, at::TensorList inputs,
                               at::TensorList outputs, std::chrono::milliseconds timeout);

  // collectives.cpp
  WorkPtr issue_all_reduce(const Issue& what, const c10d::ReduceOp& op);
  void reduce_several(at::TensorList tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  void reduce_alone(const at::Tensor& tensor, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  void reduce_fused(at::TensorList members, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  WorkPtr gather_all(c10d::OpType op, at::TensorList outputs, at::TensorList inputs,
                     const c10d::AllgatherOptions& opts);
  WorkPtr scatter_all(c10d::OpType op, at::TensorList outputs, at::TensorList inputs,
                      const c10d::ReduceScatterOptions& opts);
  void gather_lists(at::TensorList outputs, const at::Tensor& input, std::chrono::milliseconds timeout);
  void gather_into(const at::Tensor& output, const at::Tensor& input, std::chrono::milliseconds timeout);
  void scatter_into(const at::Tensor& output, const at::Tensor& input, const Reduce& reduce,
                    std::chrono::milliseconds timeout);

  void wait_before_barrier(WorkBase& other, std::chrono::milliseconds timeout);

  // fallback.cpp
  BackendBase& fallback_for(const Tensors& tensors, const char* operation);
  /// Whether tensors on a device are left to its own back end.
  bool left_to_device(at::TensorList tensors) const { return device_fallback_ && common_device(tensors); }
  /// Whether an all-reduce goes by rails_. Not in graphs, which NCCL's calls can be part of.
  bool on_rails(at::TensorList tensors, const c10d::ReduceOp& op) const;
  /// Has another back end issue an operation.
  using Delegate = std::function<WorkPtr(BackendBase&, std::chrono::milliseconds timeout)>;
  /// Of an operation that all ranks take part in. On the host it takes its turn in the queue, and begins when all ranks
  /// have said that they mean the same. @param said of the tensors. @param call of (back end, options): issues it.
  template <class Opts, class Call>
  WorkPtr delegate(const Issue& what, DelegatedCall said, const Opts& opts, Call call);
  WorkPtr delegate_with(Issue what, DelegatedCall said, Delegate issue_with);
  void carry_out_delegated(const DelegatedCall& said, const Delegated& operation, std::chrono::milliseconds timeout,
                           const Delegate& issue_with);
  /// Calls `call` and writes down how it ended, under what Communicator::began() returned.
  template <class Call>
  void recorded(std::uint64_t record, Call call);
  /// Of one between two ranks.
  WorkPtr delegate_message(c10d::OpType op, const char* title, const Tensors& tensors, const PeerMessage& message,
                           const std::function<WorkPtr(BackendBase&)>& call);
  /// Of one on a device: nothing is said of it, for NCCL's calls are to cost the host as little as they can.
  WorkPtr on_device(const Issue& what, const Tensors& tensors, const std::function<WorkPtr()>& call);
  void require_peer(const char* operation, int peer) const;
  WorkPtr as_one(std::vector<WorkPtr> works) const;
  void remember(const WorkPtr& work);
  std::vector<WorkPtr> delegated_collectives();
  WorkPtr fallback_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr fallback_all_reduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts);
  WorkPtr fallback_reduce(Tensors& tensors, const c10d::ReduceOptions& opts);
  WorkPtr fallback_broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts);
  WorkPtr fallback_all_gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr fallback_all_gather_into(Tensors outputs, Tensors inputs, const c10d::AllgatherOptions& opts);
  WorkPtr fallback_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ReduceScatterOptions& opts);
  WorkPtr fallback_reduce_scatter_tensors(Tensors outputs, Tensors inputs, const c10d::ReduceScatterOptions& opts);

  // backend.cpp
  /// Puts `work` among what endCoalescing() returns, if that is under way.
  WorkPtr collect(WorkPtr work);
  void make_fallbacks(const c10::intrusive_ptr<c10d::Store>& store);
  void abort_device();
  [[noreturn]] void fail_set_up(const Error& error);
  void stop(const std::string& reason);
  std::string why_it_leaves() const;
  /// "it left after group 3 had failed: ..." for one of the process's groups that has, else "". With live().mutex held.
  static std::string failure_known_here();
  /// @throws UsageError in the child of a fork, where neither threads nor connections are this process's.
  void refuse_after_fork(const char* operation) const;
  c10::intrusive_ptr<BackendBase> other_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              const c10::intrusive_ptr<BackendBase::Options>& options,
                                              std::vector<int> job_ranks);

  const GroupOptions group_options_;
  c10::intrusive_ptr<BackendBase::Options> options_;
  c10::intrusive_ptr<BackendBase> fallback_;
  c10::intrusive_ptr<BackendBase> device_fallback_;
  const Interpreter interpreter_;
  // Shared with work that was delegated, which may outlive the group.
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Exposure> exposure_ = std::make_shared<Exposure>(communicator_);
  DeviceStreams streams_;
  std::unique_ptr<Rails> rails_;
  std::unique_ptr<DeviceWatch> device_watch_;  // uses device_fallback_ and rails_
  const Birthplace birthplace_;
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<bool> shut_down_{false};
  std::mutex issue_mutex_;
  Residuals residuals_;
  std::mutex delegated_mutex_;
  std::vector<c10::weak_intrusive_ptr<WorkBase>> delegated_;  // on a device
  std::mutex coalescing_mutex_;
  std::atomic<bool> coalescing_{false};  // written under the lock
  std::vector<WorkPtr> coalesced_;
  // The last group that was split off or merged.
  c10::weak_intrusive_ptr<c10d::Store> other_store_{c10::intrusive_ptr<c10d::Store>()};
  c10::weak_intrusive_ptr<BackendBase> other_group_{c10::intrusive_ptr<BackendBase>()};
  OperationQueue queue_;
};

}  // namespace smddp::torch_binding
