// Operations that the core does not have: another back end of the same ranks carries them out, within the group.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "backend.hpp"
#include "delegated_work.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

Tensors flat_list(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// gloo's threads drop an operation's tensors when it has ended, which may be when the interpreter ends. To drop one
// that Python knows takes the interpreter, and aborts the process then (pytorch/pytorch#190489). So gloo gets tensors
// that Python does not know, of the same memory. Sparse ones have none to share: it puts new memory into them.
at::Tensor unknown_to_python(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.detach();
}

template <class Lists>
Lists unknown_to_python(const Lists& lists) {
  Lists copies;
  for (const auto& one : lists) copies.push_back(unknown_to_python(one));
  return copies;
}

// gloo compares nothing: less than a rank waits for would be taken for all, and more ends the process.
std::string all_alike(const Tensors& tensors, const char* where, int root) {
  if (tensors.empty() || tensors[0].layout() != c10::kStrided) return "";
  return std::string(" (") + c10::toString(tensors[0].scalar_type()) + ", " + std::to_string(tensors[0].nbytes()) +
         " bytes, " + where + std::to_string(root) + ")";
}

// Sizes may differ, and types are the same.
std::string one_type(const at::Tensor& tensor) { return std::string(" (") + c10::toString(tensor.scalar_type()) + ")"; }

// gloo compares nothing here either. A message travels under a tag that stands for its type and size, so it meets none
// that differs; ranks that then wait in vain compare what they wait for. NCCL, which knows no tags, is not concerned.
PeerMessage message_of(const Tensors& tensors, bool sends, int peer, int tag) {
  PeerMessage message{sends, peer, tag, 0, "", 0};
  if (tensors.size() != 1 || !tensors[0].is_cpu() || tensors[0].layout() != c10::kStrided) return message;
  message.type = c10::toString(tensors[0].scalar_type());
  message.bytes = tensors[0].nbytes();
  return message;
}

// Negative tags are gloo's to refuse.
int travelling(const PeerMessage& message) {
  return message.type.empty() || message.tag < 0 ? message.tag : travelling_tag(message);
}

// Where gloo takes the memory of a tensor for its elements in order, whatever its strides.
void require_contiguous(const Tensors& tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.is_cuda() || tensor.layout() != c10::kStrided || tensor.is_contiguous(),
                      "smddp: ", operation, " takes contiguous tensors: call contiguous() first");
}

}  // namespace

// Once the group is dead every operation says why, also those that the fallback could still try.
BackendBase& Backend::fallback_for(const Tensors& tensors, const char* operation) {
  refuse_after_fork(operation);
  TORCH_CHECK(!shut_down_, "smddp: the process group was destroyed");
  communicator_->check();
  if (!common_device(tensors)) return *fallback_;
  TORCH_CHECK_NOT_IMPLEMENTED(device_fallback_, operation, " of a tensor on ", tensors[0].device(),
                              " is left to NCCL, which this group does not have");
  return *device_fallback_;
}

template <class Opts>
Opts Backend::with_timeout(Opts opts) const {
  // Unset is negative in some releases and zero in others.
  if (opts.timeout.count() <= 0) opts.timeout = options_->timeout;
  return opts;
}

template <class Call>
Backend::WorkPtr Backend::delegate(c10d::OpType op, const char* title, const Tensors& tensors, Call call,
                                   const std::string& alike, const PeerMessage& message) {
  Delegated operation{name_in(title), 0, message.peer, 0, message};
  BackendBase& other = fallback_for(tensors, operation.name.c_str());
  const bool on_host = &other == fallback_.get();
  // Not for NCCL, whose calls are to cost the host as little as they can.
  if (!c10d::isP2POp(op) && on_host) {
    const std::lock_guard<std::mutex> lock(issue_mutex_);
    operation.number = ++delegated_count_;
    communicator_->delegate(issued_, operation.number, title + alike);
  }
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
  if (on_host) operation.record = communicator_->began(operation.name, operation.number, message.peer, bytes);
  WorkPtr theirs;
  try {
    theirs = call(other);
  } catch (...) {
    communicator_->ended(operation.record, true, {});
    if (on_host) rethrow_as_ours(std::current_exception(), operation, *communicator_);
    communicator_->check();
    throw;
  }
  // NCCL carries a synchronous operation out on the caller's stream: there is nothing to wait for (2.8).
  if (!theirs) return theirs;
  // Not counted before: those that gloo refuses are none.
  if (!message.type.empty()) operation.message.number = communicator_->issued(message);
  if (op == c10d::OpType::RECVANYSOURCE && on_host) communicator_->issued_from_any();
  auto work = c10::make_intrusive<DelegatedWork>(getRank(), op, title, tensors, std::move(theirs), std::move(operation),
                                                 communicator_);
  DelegatedWork::watch(work);
  remember(work);
  return collect(work);
}

Backend::WorkPtr Backend::as_one(std::vector<WorkPtr> works) const {
  // Some may have nothing to wait for: see delegate().
  works.erase(std::remove_if(works.begin(), works.end(), [](const WorkPtr& work) { return !work; }), works.end());
  if (works.size() < 2) return works.empty() ? WorkPtr() : works[0];
  return c10::make_intrusive<CoalescedWork>(getRank(), std::move(works));
}

// Weak references: the caller decides how long the work and its tensors live.
void Backend::remember(const WorkPtr& work) {
  const std::lock_guard<std::mutex> lock(delegated_mutex_);
  delegated_.erase(std::remove_if(delegated_.begin(), delegated_.end(),
                                  [](const auto& weak) {
                                    const WorkPtr alive = weak.lock();
                                    return !alive || alive->isCompleted();
                                  }),
                   delegated_.end());
  delegated_.emplace_back(work);
}

// Point-to-point operations are no concern of a barrier: the peer may not have come to them.
std::vector<Backend::WorkPtr> Backend::delegated_collectives() {
  const std::lock_guard<std::mutex> lock(delegated_mutex_);
  std::vector<WorkPtr> works;
  for (const auto& weak : delegated_) {
    WorkPtr alive = weak.lock();
    if (alive && !c10d::isP2POp(alive->retrieveOpType())) works.push_back(std::move(alive));
  }
  return works;
}

Backend::WorkPtr Backend::fallback_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  // torch's gloo takes sparse tensors through its plain all-reduce.
  Tensors theirs = unknown_to_python(tensors);
  return delegate(c10d::OpType::ALLREDUCE, "smddp:all_reduce", tensors,
                  [&](BackendBase& other) { return other.allreduce(theirs, with_timeout(opts)); });
}

Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return fallback_all_reduce(tensors, opts);
}

Backend::WorkPtr Backend::fallback_all_reduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Tensors theirs = unknown_to_python(tensors);
  return delegate(c10d::OpType::ALLREDUCE_COALESCED, "smddp:all_reduce", tensors,
                  [&](BackendBase& other) { return other.allreduce_coalesced(theirs, with_timeout(opts)); });
}

Backend::WorkPtr Backend::fallback_broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Tensors theirs = unknown_to_python(tensors);
  return delegate(c10d::OpType::BROADCAST, "smddp:broadcast", tensors,
                  [&](BackendBase& other) { return other.broadcast(theirs, with_timeout(opts)); });
}

Backend::WorkPtr Backend::fallback_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  return delegate(c10d::OpType::ALLGATHER, "smddp:all_gather", inputs,
                  [&](BackendBase& other) { return other.allgather(theirs, from, with_timeout(opts)); });
}

Backend::WorkPtr Backend::fallback_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  return delegate(c10d::OpType::REDUCE_SCATTER, "smddp:reduce_scatter", flat_list(inputs),
                  [&](BackendBase& other) { return other.reduce_scatter(theirs, from, with_timeout(opts)); });
}

Backend::WorkPtr Backend::fallback_reduce_scatter_tensors(Tensors outputs, Tensors inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    works.push_back(delegate(
        c10d::OpType::_REDUCE_SCATTER_BASE, "smddp:reduce_scatter_tensor", {inputs[i]},
        [&](BackendBase& other) { return other._reduce_scatter_base(theirs[i], from[i], with_timeout(opts)); }));
  return as_one(std::move(works));
}

Backend::WorkPtr Backend::fallback_all_gather_into(Tensors outputs, Tensors inputs,
                                                   const c10d::AllgatherOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    works.push_back(
        delegate(c10d::OpType::_ALLGATHER_BASE, "smddp:all_gather_into_tensor", {inputs[i]},
                 [&](BackendBase& other) { return other._allgather_base(theirs[i], from[i], with_timeout(opts)); }));
  return as_one(std::move(works));
}

Backend::WorkPtr Backend::fallback_reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  require_contiguous(tensors, "reduce of this type and operation");
  Tensors theirs = unknown_to_python(tensors);
  return delegate(c10d::OpType::REDUCE, "smddp:reduce", tensors,
                  [&](BackendBase& other) { return other.reduce(theirs, with_timeout(opts)); });
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  return delegate(
      c10d::OpType::GATHER, "smddp:gather", inputs,
      [&](BackendBase& other) { return other.gather(theirs, from, with_timeout(opts)); },
      all_alike(inputs, "to rank ", static_cast<int>(opts.rootRank)));
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  require_contiguous(outputs, "scatter");
  require_contiguous(flat_list(inputs), "scatter");
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  return delegate(
      c10d::OpType::SCATTER, "smddp:scatter", inputs.empty() ? outputs : flat_list(inputs),
      [&](BackendBase& other) { return other.scatter(theirs, from, with_timeout(opts)); },
      all_alike(outputs, "from rank ", static_cast<int>(opts.rootRank)));
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  require_contiguous({output, input}, "all_to_all_single");
  at::Tensor theirs = unknown_to_python(output);
  at::Tensor from = unknown_to_python(input);
  return delegate(
      c10d::OpType::ALLTOALL_BASE, "smddp:all_to_all", {input},
      [&](BackendBase& other) {
        return other.alltoall_base(theirs, from, output_splits, input_splits, with_timeout(opts));
      },
      one_type(input));
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  auto theirs = unknown_to_python(outputs);
  auto from = unknown_to_python(inputs);
  return delegate(
      c10d::OpType::ALLTOALL, "smddp:all_to_all", inputs,
      [&](BackendBase& other) { return other.alltoall(theirs, from, with_timeout(opts)); },
      inputs.empty() ? "" : one_type(inputs[0]));
}

// gloo takes it for an index.
void Backend::require_peer(const char* operation, int peer) const {
  if (peer < 0 || peer >= getSize())
    throw UsageError(std::string("smddp: ") + operation + " rank " + std::to_string(peer) + " in a group of " +
                     std::to_string(getSize()));
  if (peer == getRank())
    throw UsageError(std::string("smddp: ") + operation + " rank " + std::to_string(peer) +
                     ", which is this rank itself");
}

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  require_peer("send to", destination);
  const PeerMessage message = message_of(tensors, true, destination, tag);
  return delegate(
      c10d::OpType::SEND, "smddp:send", tensors,
      [&](BackendBase& other) { return other.send(tensors, destination, travelling(message)); }, "", message);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  require_peer("recv from", source);
  const PeerMessage message = message_of(tensors, false, source, tag);
  return delegate(
      c10d::OpType::RECV, "smddp:recv", tensors,
      [&](BackendBase& other) { return other.recv(tensors, source, travelling(message)); }, "", message);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return delegate(c10d::OpType::RECVANYSOURCE, "smddp:recvAnySource", tensors, [&](BackendBase& other) {
    return other.recvAnysource(tensors, travelling(message_of(tensors, false, -1, tag)));
  });
}

// gloo's names the ranks that did not come, which is all it is for. Python's dist.monitored_barrier() insists on a
// group whose name is gloo; the group's own method gets here.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  fallback_for({}, "monitored_barrier").monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace smddp::torch_binding
