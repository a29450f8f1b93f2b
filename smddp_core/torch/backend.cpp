// Group life cycle and the operations of the core. What goes to the fallback is in fallback.cpp.
#include "backend.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <Python.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "runtime/cpu_list.hpp"
#include "smddp/errors.hpp"
#include "store.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

using Milliseconds = std::chrono::milliseconds;

// How long operations that nobody waited for may take when the group is given up. A rank that leaves after an exception
// must not wait for peers that wait for it.
constexpr Milliseconds kLeavePatience{5000};

// Lets other Python threads run while this one blocks, if it holds the interpreter at all.
class GilRelease {
 public:
  GilRelease() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

std::unique_ptr<Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                Milliseconds timeout, const std::string& name,
                                                const Settings& settings) {
  StoreAdapter adapter(store);
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  options.name = name;
  options.env = Env::from_process(settings);
  return std::make_unique<Communicator>(adapter, options);
}

// Groups that have threads. Leaked on purpose: groups may outlive static destructors.
struct Live {
  std::mutex mutex;
  std::set<Backend*> backends;
};
Live& live() {
  static Live* const instance = new Live;
  return *instance;
}

// Whether the caller waits at once. Releases before 2.4 do not say, and some operations only do from 2.8 on.
template <class Opts>
auto synchronous_or(const Opts& opts, int) -> decltype(!opts.asyncOp) {
  return !opts.asyncOp;
}
template <class Opts>
bool synchronous_or(const Opts&, long) {
  return false;
}
template <class Opts>
bool is_synchronous(const Opts& opts) {
  return synchronous_or(opts, 0);
}

const at::Tensor& only(const Tensors& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smddp: ", operation, " takes one tensor a call, got ", tensors.size());
  return tensors[0];
}

std::vector<Flat> flatten(const Tensors& tensors, bool read) {
  std::vector<Flat> flats;
  flats.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flats.emplace_back(tensor, read);
  return flats;
}

// One element run of a tensor that is cut into `parts` equal ones.
std::byte* run_of(const Flat& whole, int parts, int index) {
  return static_cast<std::byte*>(whole.data()) +
         whole.tensor().nbytes() / static_cast<std::size_t>(parts) * static_cast<std::size_t>(index);
}

Tensors join(const Tensors& a, const Tensors& b) {
  Tensors all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
                 const std::string& name, c10::intrusive_ptr<c10d::Backend> fallback, const Settings& settings)
    : c10d::Backend(rank, size),
      options_(c10::make_intrusive<c10d::Backend::Options>("smddp", timeout)),
      fallback_(std::move(fallback)),
      communicator_(make_communicator(store, rank, size, timeout, name, settings)),
      pid_(::getpid()),
      progress_(1, "smddp-progress") {
  const std::string cpus = Env::from_process(settings).cpus;
  if (!cpus.empty()) progress_.run_on(*cpus_from(cpus));
  const std::lock_guard<std::mutex> lock(live().mutex);
  live().backends.insert(this);
}

Backend::~Backend() {
  const GilRelease release;
  {
    const std::lock_guard<std::mutex> lock(live().mutex);
    live().backends.erase(this);
  }
  stop();
}

void Backend::stop_all() {
  const GilRelease release;
  const std::lock_guard<std::mutex> lock(live().mutex);
  for (Backend* backend : live().backends) backend->stop();
}

void Backend::refuse_after_fork(const char* operation) const {
  if (::getpid() != pid_)
    throw UsageError(std::string("smddp: ") + operation +
                     " in a forked child: DataLoader workers must not use the parent's process group");
}

void Backend::stop() {
  if (::getpid() != pid_) return;
  if (shut_down_.exchange(true)) return;
  if (!progress_.wait_idle(kLeavePatience))
    communicator_->abort("rank " + std::to_string(getRank()) + " left the group during " +
                         std::to_string(communicator_->sequence()) + "th operation");
  progress_.drain();
  completions_.drain();
  communicator_->write_stats();
}

void Backend::shutdown() {
  const GilRelease release;
  stop();
  fallback_->shutdown();
}

void Backend::abort() {
  communicator_->abort("the process group was aborted by rank " + std::to_string(getRank()));
  fallback_->abort();
}

void Backend::setTimeout(Milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "smddp: the timeout must be positive");
  options_->timeout = timeout;
}

c10d::ErrorType Backend::getError() {
  return communicator_->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

std::string Backend::path() const { return name_of(communicator_->topology().path); }

// What an operation needs as long as it runs, the caller's thread or the progress thread alike.
template <class Body>
void Backend::carry_out(Work& work, int lane, Milliseconds timeout, const Body& body) {
  std::exception_ptr error;
  try {
    // Copies in and out of non-contiguous tensors are not part of anyone's graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    body(timeout);
  } catch (...) {
    error = std::current_exception();
  }
  work.complete(error, [&](auto task) { completions_.post(lane, std::move(task)); });
}

template <class Opts>
Backend::Issue Backend::issue_of(c10d::OpType op, const char* title, const Tensors& inputs, const Tensors& outputs,
                                 const Opts& opts) const {
  // Unset is negative in some releases and zero in others.
  const Milliseconds timeout = opts.timeout.count() > 0 ? opts.timeout : options_->timeout;
  return {op, title, inputs, outputs, false, is_synchronous(opts), timeout};
}

template <class Body>
Backend::WorkPtr Backend::issue(Issue what, Body body) {
  refuse_after_fork(what.title);
  const int lane = CompletionLanes::lane_of_this_thread();
  // Number and place in the queue must agree.
  std::unique_lock<std::mutex> lock(issue_mutex_);
  TORCH_CHECK(!shut_down_, "smddp: the process group was destroyed");
  auto work = c10::make_intrusive<Work>(getRank(), what.op, what.title, what.inputs, std::move(what.outputs),
                                        what.nested, ++issued_);
  if (what.synchronous && progress_.try_enter()) {
    lock.unlock();
    const GilRelease release;
    carry_out(*work, lane, what.timeout, body);
    progress_.leave();
    return work;
  }
  progress_.post(
      [this, work, lane, timeout = what.timeout, body = std::move(body)] { carry_out(*work, lane, timeout, body); });
  return work;
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = only(tensors, "broadcast");
  require_cpu(tensors, "broadcast");
  if (!can_move(tensors)) return fallback(tensors, "broadcast").broadcast(tensors, opts);
  const int root = static_cast<int>(opts.rootRank);
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "smddp: broadcast from rank ", root, " in a group of ", getSize());
  return issue(issue_of(c10d::OpType::BROADCAST, "smddp:broadcast", tensors, tensors, opts),
               [this, tensor, root](Milliseconds timeout) {
                 Flat flat(tensor, root == getRank());
                 const MoveType type = move_type(tensor.scalar_type());
                 communicator_->broadcast(flat.data(), tensor.nbytes(), root, timeout, type.dtype, type.tag);
                 flat.finish();
               });
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  only(tensors, "all_reduce");
  require_cpu(tensors, "all_reduce");
  if (!can_reduce(tensors, opts.reduceOp)) return fallback(tensors, "all_reduce").allreduce(tensors, opts);
  return issue_all_reduce(issue_of(c10d::OpType::ALLREDUCE, "smddp:all_reduce", tensors, tensors, opts), opts.reduceOp);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  require_cpu(tensors, "all_reduce_coalesced");
  if (!can_reduce(tensors, opts.reduceOp))
    return fallback(tensors, "all_reduce_coalesced").allreduce_coalesced(tensors, opts);
  return issue_all_reduce(
      issue_of(c10d::OpType::ALLREDUCE_COALESCED, "smddp:all_reduce_coalesced", tensors, tensors, opts), opts.reduceOp);
}

Backend::WorkPtr Backend::issue_all_reduce(Issue what, const c10d::ReduceOp& op) {
  return issue(what, [this, tensors = what.inputs, reduce = *reduce_op(op)](Milliseconds timeout) {
    for (const at::Tensor& tensor : tensors) {
      Flat flat(tensor, true);
      std::shared_ptr<Residual> residual;
      if (communicator_->keeps_residuals(tensor.nbytes())) residual = residuals_.of(tensor);
      communicator_->all_reduce(flat.data(), flat.data(), static_cast<std::size_t>(tensor.numel()),
                                *arithmetic_type(tensor.scalar_type()), reduce, timeout, residual.get());
      flat.finish();
    }
  });
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const at::Tensor input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "smddp: all_gather takes one list of outputs, got ", outputs.size());
  const Tensors outs = outputs[0];
  require_cpu(join(inputs, outs), "all_gather");
  require_alike(outs, static_cast<std::size_t>(getSize()), input, "all_gather");
  if (!can_move(inputs) || !can_move(outs)) return fallback(inputs, "all_gather").allgather(outputs, inputs, opts);
  Issue what = issue_of(c10d::OpType::ALLGATHER, "smddp:all_gather", inputs, outs, opts);
  what.nested = true;
  return issue(std::move(what), [this, input, outs](Milliseconds timeout) {
    const Flat in(input, true);
    std::vector<Flat> flats = flatten(outs, false);
    std::vector<void*> runs;
    for (const Flat& flat : flats) runs.push_back(flat.data());
    const MoveType type = move_type(input.scalar_type());
    communicator_->all_gather(in.data(), runs, input.nbytes(), timeout, type.dtype, type.tag);
    for (Flat& flat : flats) flat.finish();
  });
}

void Backend::gather_into(const at::Tensor& output, const at::Tensor& input, Milliseconds timeout) {
  const Flat in(input, true);
  Flat out(output, false);
  std::vector<void*> runs;
  for (int r = 0; r < getSize(); ++r) runs.push_back(run_of(out, getSize(), r));
  const MoveType type = move_type(input.scalar_type());
  communicator_->all_gather(in.data(), runs, input.nbytes(), timeout, type.dtype, type.tag);
  out.finish();
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return gather_all(c10d::OpType::_ALLGATHER_BASE, outputs, inputs, opts);
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return gather_all(c10d::OpType::COALESCED, outputs, inputs, opts);
}

Backend::WorkPtr Backend::gather_all(c10d::OpType op, Tensors& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "smddp: all_gather_into_tensor: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  require_cpu(join(inputs, outputs), "all_gather_into_tensor");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_multiple(outputs[i], inputs[i], getSize(), "all_gather_into_tensor");
  return issue(issue_of(op, "smddp:all_gather_into_tensor", inputs, outputs, opts),
               [this, outputs, inputs](Milliseconds timeout) {
                 for (std::size_t i = 0; i < inputs.size(); ++i) gather_into(outputs[i], inputs[i], timeout);
               });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const at::Tensor output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "smddp: reduce_scatter takes one list of inputs, got ", inputs.size());
  const Tensors ins = inputs[0];
  require_cpu(join(ins, outputs), "reduce_scatter");
  require_alike(ins, static_cast<std::size_t>(getSize()), output, "reduce_scatter");
  if (!can_reduce(join(ins, outputs), opts.reduceOp))
    return fallback(ins, "reduce_scatter").reduce_scatter(outputs, inputs, opts);
  return issue(issue_of(c10d::OpType::REDUCE_SCATTER, "smddp:reduce_scatter", ins, outputs, opts),
               [this, output, ins, reduce = *reduce_op(opts.reduceOp)](Milliseconds timeout) {
                 Flat out(output, false);
                 const std::vector<Flat> flats = flatten(ins, true);
                 std::vector<const void*> runs;
                 for (const Flat& flat : flats) runs.push_back(flat.data());
                 communicator_->reduce_scatter(runs, out.data(), static_cast<std::size_t>(output.numel()),
                                               *arithmetic_type(output.scalar_type()), reduce, timeout);
                 out.finish();
               });
}

void Backend::scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp reduce, Milliseconds timeout) {
  Flat out(output, false);
  const Flat in(input, true);
  std::vector<const void*> runs;
  for (int r = 0; r < getSize(); ++r) runs.push_back(run_of(in, getSize(), r));
  communicator_->reduce_scatter(runs, out.data(), static_cast<std::size_t>(output.numel()),
                                *arithmetic_type(output.scalar_type()), reduce, timeout);
  out.finish();
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  if (!can_reduce(join(inputs, outputs), opts.reduceOp))
    return fallback(inputs, "reduce_scatter_tensor")._reduce_scatter_base(output, input, opts);
  return scatter_all(c10d::OpType::_REDUCE_SCATTER_BASE, outputs, inputs, opts);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  if (!can_reduce(join(inputs, outputs), opts.reduceOp))
    return fallback(inputs, "reduce_scatter_tensor").reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  return scatter_all(c10d::OpType::COALESCED, outputs, inputs, opts);
}

Backend::WorkPtr Backend::scatter_all(c10d::OpType op, Tensors& outputs, Tensors& inputs,
                                      const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "smddp: reduce_scatter_tensor: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  require_cpu(join(inputs, outputs), "reduce_scatter_tensor");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_multiple(inputs[i], outputs[i], getSize(), "reduce_scatter_tensor");
  return issue(issue_of(op, "smddp:reduce_scatter_tensor", inputs, outputs, opts),
               [this, outputs, inputs, reduce = *reduce_op(opts.reduceOp)](Milliseconds timeout) {
                 for (std::size_t i = 0; i < inputs.size(); ++i) scatter_into(outputs[i], inputs[i], reduce, timeout);
               });
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  return issue(issue_of(c10d::OpType::BARRIER, "smddp:barrier", {}, {}, opts),
               [this](Milliseconds timeout) { communicator_->barrier(timeout); });
}

}  // namespace smddp::torch_binding
