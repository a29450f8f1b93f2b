// Operations that the core does not have: another back end of the same ranks carries them out, within the group.
#include <algorithm>
#include <string>
#include <utility>

#include "backend.hpp"
#include "delegated_tensors.hpp"
#include "delegated_work.hpp"
#include "issue.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

Tensors flat_list(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::uint64_t bytes_of_all(TensorList tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
  return bytes;
}

// gloo compares nothing. A message travels under a tag that stands for its type and size, so it meets none
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

template <class Opts, class Call>
Backend::WorkPtr Backend::delegate(const Issue& what, DelegatedCall said, const Opts& opts, Call call) {
  return delegate_with(
      what, std::move(said),
      [with = Opts(opts), call = std::move(call)](BackendBase& carrier, std::chrono::milliseconds timeout) mutable {
        with.timeout = timeout;
        return call(carrier, with);
      });
}

Backend::WorkPtr Backend::delegate_with(Issue what, DelegatedCall said, Delegate issue_with) {
  const char* const name = name_in(what.title);
  const Tensors tensors = what.inputs.empty() ? what.outputs.vec() : what.inputs.vec();
  BackendBase& other = fallback_for(tensors, name);
  if (&other != fallback_.get()) return on_device(what, tensors, [&] { return issue_with(other, what.timeout); });
  what.device = {};
  what.delegated = true;
  return issue(what, [this, said = std::move(said), name, bytes = bytes_of_all(tensors),
                      issue_with = std::move(issue_with)](TensorList, TensorList, std::chrono::milliseconds timeout) {
    carry_out_delegated(said, {name, -1, communicator_->began(name, -1, bytes), {}}, timeout, issue_with);
  });
}

// In its turn: gloo tells operations apart by the order in which they are issued.
void Backend::carry_out_delegated(const DelegatedCall& said, const Delegated& operation,
                                  std::chrono::milliseconds timeout, const Delegate& issue_with) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + timeout;
  recorded(operation.record, [&] {
    communicator_->agree(said, operation.record, timeout);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    WorkPtr theirs;
    try {
      theirs = issue_with(*fallback_, std::max(left, std::chrono::milliseconds(1)));
    } catch (...) {
      rethrow_as_ours(std::current_exception(), operation, *communicator_);
    }
    wait_for_all(*theirs, operation, *communicator_);
  });
}

template <class Call>
void Backend::recorded(std::uint64_t record, Call call) {
  try {
    call();
  } catch (...) {
    communicator_->ended(record, true);
    throw;
  }
  communicator_->ended(record, false);
}

Backend::WorkPtr Backend::on_device(const Issue& what, const Tensors& tensors, const std::function<WorkPtr()>& call) {
  WorkPtr theirs;
  try {
    theirs = call();
  } catch (...) {
    communicator_->check();
    throw;
  }
  // NCCL carries a synchronous operation out on the caller's stream: there is nothing to wait for (2.8).
  if (!theirs) return theirs;
  auto work = c10::make_intrusive<DelegatedWork>(getRank(), what.op, what.title, tensors, std::move(theirs),
                                                 Delegated{name_in(what.title), -1, 0, {}}, communicator_);
  DelegatedWork::watch(work);
  remember(work);
  return collect(work);
}

Backend::WorkPtr Backend::delegate_message(c10d::OpType op, const char* title, const Tensors& tensors,
                                           const PeerMessage& message,
                                           const std::function<WorkPtr(BackendBase&)>& call) {
  Delegated operation{name_in(title), message.peer, 0, message};
  BackendBase& other = fallback_for(tensors, operation.name.c_str());
  if (&other != fallback_.get()) {
    const Issue what{op, title, tensors, tensors, 0, false, options_->timeout, {}};
    return on_device(what, tensors, [&] { return call(other); });
  }
  operation.record = communicator_->began(operation.name, message.peer, bytes_of_all(tensors));
  WorkPtr theirs;
  try {
    theirs = call(other);
  } catch (...) {
    communicator_->ended(operation.record, true);
    rethrow_as_ours(std::current_exception(), operation, *communicator_);
  }
  // Not counted before: those that gloo refuses are none.
  if (!message.type.empty()) operation.message.number = communicator_->issued(message);
  if (op == c10d::OpType::RECVANYSOURCE) communicator_->issued_from_any();
  return collect(c10::make_intrusive<DelegatedWork>(getRank(), op, title, tensors, std::move(theirs),
                                                    std::move(operation), communicator_));
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
  return delegate(
      issue_of(c10d::OpType::ALLREDUCE, "smddp:all_reduce", tensors, tensors, opts),
      same_sizes(OpKind::all_reduce, tensors), opts,
      [theirs = unknown_to_python(tensors)](BackendBase& other, const c10d::AllreduceOptions& with) mutable {
        return other.allreduce(theirs, with);
      });
}

Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return fallback_all_reduce(tensors, opts);
}

Backend::WorkPtr Backend::fallback_all_reduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return delegate(
      issue_of(c10d::OpType::ALLREDUCE_COALESCED, "smddp:all_reduce", tensors, tensors, opts),
      same_sizes(OpKind::all_reduce, tensors), opts,
      [theirs = unknown_to_python(tensors)](BackendBase& other, const c10d::AllreduceCoalescedOptions& with) mutable {
        return other.allreduce_coalesced(theirs, with);
      });
}

Backend::WorkPtr Backend::fallback_broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return delegate(
      issue_of(c10d::OpType::BROADCAST, "smddp:broadcast", tensors, tensors, opts),
      same_sizes(OpKind::broadcast, tensors, root("from", opts.rootRank)), opts,
      [theirs = unknown_to_python(tensors)](BackendBase& other, const c10d::BroadcastOptions& with) mutable {
        return other.broadcast(theirs, with);
      });
}

Backend::WorkPtr Backend::fallback_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return delegate(issue_of(c10d::OpType::ALLGATHER, "smddp:all_gather", inputs, flat_list(outputs), opts),
                  same_sizes(OpKind::all_gather, inputs), opts,
                  [theirs = unknown_to_python(outputs), from = unknown_to_python(inputs)](
                      BackendBase& other, const c10d::AllgatherOptions& with) mutable {
                    return other.allgather(theirs, from, with);
                  });
}

Backend::WorkPtr Backend::fallback_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& opts) {
  return delegate(issue_of(c10d::OpType::REDUCE_SCATTER, "smddp:reduce_scatter", flat_list(inputs), outputs, opts),
                  same_sizes(OpKind::reduce_scatter, outputs), opts,
                  [theirs = unknown_to_python(outputs), from = unknown_to_python(inputs)](
                      BackendBase& other, const c10d::ReduceScatterOptions& with) mutable {
                    return other.reduce_scatter(theirs, from, with);
                  });
}

Backend::WorkPtr Backend::fallback_reduce_scatter_tensors(Tensors outputs, Tensors inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    works.push_back(delegate(
        issue_of(c10d::OpType::_REDUCE_SCATTER_BASE, "smddp:reduce_scatter_tensor", inputs[i], outputs[i], opts),
        same_sizes(OpKind::reduce_scatter, {outputs[i]}), opts,
        [theirs = unknown_to_python(outputs[i]), from = unknown_to_python(inputs[i])](
            BackendBase& other, const c10d::ReduceScatterOptions& with) mutable {
          return other._reduce_scatter_base(theirs, from, with);
        }));
  return as_one(std::move(works));
}

Backend::WorkPtr Backend::fallback_all_gather_into(Tensors outputs, Tensors inputs,
                                                   const c10d::AllgatherOptions& opts) {
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    works.push_back(
        delegate(issue_of(c10d::OpType::_ALLGATHER_BASE, "smddp:all_gather_into_tensor", inputs[i], outputs[i], opts),
                 same_sizes(OpKind::all_gather, {inputs[i]}), opts,
                 [theirs = unknown_to_python(outputs[i]), from = unknown_to_python(inputs[i])](
                     BackendBase& other, const c10d::AllgatherOptions& with) mutable {
                   return other._allgather_base(theirs, from, with);
                 }));
  return as_one(std::move(works));
}

Backend::WorkPtr Backend::fallback_reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  require_contiguous(tensors, "reduce of this type and operation");
  return delegate(issue_of(c10d::OpType::REDUCE, "smddp:reduce", tensors, tensors, opts),
                  same_sizes(OpKind::reduce, tensors, root("to", opts.rootRank)), opts,
                  [theirs = unknown_to_python(tensors)](BackendBase& other, const c10d::ReduceOptions& with) mutable {
                    return other.reduce(theirs, with);
                  });
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  if (!left_to_device(inputs)) require_one_each(outputs, opts.rootRank == getRank(), inputs, getSize(), "gather");
  return delegate(
      issue_of(c10d::OpType::GATHER, "smddp:gather", inputs, flat_list(outputs), opts),
      same_sizes(OpKind::gather, inputs, root("to", opts.rootRank)), opts,
      [theirs = unknown_to_python(outputs), from = unknown_to_python(inputs)](
          BackendBase& other, const c10d::GatherOptions& with) mutable { return other.gather(theirs, from, with); });
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  if (!left_to_device(outputs)) require_one_each(inputs, opts.rootRank == getRank(), outputs, getSize(), "scatter");
  require_contiguous(outputs, "scatter");
  require_contiguous(flat_list(inputs), "scatter");
  return delegate(
      issue_of(c10d::OpType::SCATTER, "smddp:scatter", flat_list(inputs), outputs, opts),
      same_sizes(OpKind::scatter, outputs, root("from", opts.rootRank)), opts,
      [theirs = unknown_to_python(outputs), from = unknown_to_python(inputs)](
          BackendBase& other, const c10d::ScatterOptions& with) mutable { return other.scatter(theirs, from, with); });
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  require_contiguous({output, input}, "all_to_all_single");
  DelegatedCall said = same_types(OpKind::all_to_all, {input});
  said.gives = bytes_of_each(input, input_splits, getSize());
  said.takes = bytes_of_each(output, output_splits, getSize());
  return delegate(issue_of(c10d::OpType::ALLTOALL_BASE, "smddp:all_to_all", input, output, opts), std::move(said), opts,
                  [theirs = unknown_to_python(output), from = unknown_to_python(input), output_splits, input_splits](
                      BackendBase& other, const c10d::AllToAllOptions& with) mutable {
                    return other.alltoall_base(theirs, from, output_splits, input_splits, with);
                  });
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  for (const Tensors* tensors : {&inputs, &outputs})
    TORCH_CHECK_VALUE(tensors->size() == static_cast<std::size_t>(getSize()), "smddp: all_to_all: expected ", getSize(),
                      " tensors, one a rank, got ", tensors->size());
  DelegatedCall said = same_types(OpKind::all_to_all, inputs);
  said.gives = bytes_of_each(inputs);
  said.takes = bytes_of_each(outputs);
  return delegate(issue_of(c10d::OpType::ALLTOALL, "smddp:all_to_all", inputs, outputs, opts), std::move(said), opts,
                  [theirs = unknown_to_python(outputs), from = unknown_to_python(inputs)](
                      BackendBase& other, const c10d::AllToAllOptions& with) mutable {
                    return other.alltoall(theirs, from, with);
                  });
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
  return delegate_message(c10d::OpType::SEND, "smddp:send", tensors, message,
                          [&](BackendBase& other) { return other.send(tensors, destination, travelling(message)); });
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  require_peer("recv from", source);
  const PeerMessage message = message_of(tensors, false, source, tag);
  return delegate_message(c10d::OpType::RECV, "smddp:recv", tensors, message,
                          [&](BackendBase& other) { return other.recv(tensors, source, travelling(message)); });
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return delegate_message(c10d::OpType::RECVANYSOURCE, "smddp:recvAnySource", tensors, {}, [&](BackendBase& other) {
    return other.recvAnysource(tensors, travelling(message_of(tensors, false, -1, tag)));
  });
}

// gloo's names the ranks that did not come, which is all it is for. Python's dist.monitored_barrier() insists on a
// group whose name is gloo; the group's own method gets here.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  fallback_for({}, "monitored_barrier");
  Issue what = issue_of(c10d::OpType::BARRIER, "smddp:monitored_barrier", TensorList(), TensorList(), opts);
  what.synchronous = what.delegated = true;
  const WorkPtr work = issue(what, [this, opts, wait_all_ranks](TensorList, TensorList, std::chrono::milliseconds) {
    recorded(communicator_->began("monitored_barrier", -1, 0),
             [&] { fallback_->monitoredBarrier(opts, wait_all_ranks); });
  });
  work->wait();
}

}  // namespace smddp::torch_binding
