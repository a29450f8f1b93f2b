// The operations of the core: arguments are checked on the caller's thread, the work is done in turn.
#include <algorithm>
#include <utility>

#include "fusion.hpp"
#include "issue.hpp"
#include "security/crc32c.hpp"
#include "staging.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

using Milliseconds = std::chrono::milliseconds;

const at::Tensor& only(TensorList tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smddp: ", operation, " takes one tensor a call, got ", tensors.size());
  return tensors[0];
}

std::vector<Flat> flatten(TensorList tensors, bool read) {
  std::vector<Flat> flats;
  flats.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flats.emplace_back(tensor, read);
  return flats;
}

// What a rank contributes to a reduction.
Flat contribution(const at::Tensor& tensor, const Reduce& reduce) {
  return reduce.factor.defined() ? Flat(tensor, reduce.factor) : Flat(tensor, true);
}

// What ranks must have in common in an all-reduce beside its type in the core, as a number: PREMUL_SUM is a sum there,
// a bool a byte.
std::uint32_t form_of(at::ScalarType type, const Reduce& reduce) {
  return (reduce.factor.defined() ? 1U : 0U) | (type == at::kBool ? 2U : 0U);
}

// The same for tensors that travel as one: their sizes.
std::uint32_t form_of(TensorList members) {
  std::uint32_t form = 0;
  for (const at::Tensor& tensor : members) {
    const std::int64_t count = tensor.numel();
    form = crc32c(form, &count, sizeof(count));
  }
  return form | 0x80000000U;
}

// One element run of a tensor that is cut into `parts` equal ones.
std::byte* run_of(Flat& whole, int parts, int index) {
  return static_cast<std::byte*>(whole.data()) +
         whole.tensor().nbytes() / static_cast<std::size_t>(parts) * static_cast<std::size_t>(index);
}

}  // namespace

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  only(tensors, "broadcast");
  if (!can_move(tensors) || left_to_device(tensors)) return fallback_broadcast(tensors, opts);
  const int root = static_cast<int>(opts.rootRank);
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "smddp: broadcast from rank ", root, " in a group of ", getSize());
  return issue(issue_of(c10d::OpType::BROADCAST, "smddp:broadcast", tensors, tensors, opts),
               [this, root](TensorList, TensorList outputs, Milliseconds timeout) {
                 const at::Tensor& tensor = outputs[0];
                 Flat flat(tensor, root == getRank());
                 const MoveType type = move_type(tensor.scalar_type());
                 communicator_->broadcast(flat.data(), tensor.nbytes(), root, timeout, type.dtype, type.tag);
                 flat.finish();
               });
}

bool Backend::on_rails(TensorList tensors, const c10d::ReduceOp& op) const {
  return rails_ && Rails::can_reduce(tensors, op) && !is_capturing(tensors[0].device());
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  only(tensors, "all_reduce");
  if (!can_reduce(tensors, opts.reduceOp) || (left_to_device(tensors) && !on_rails(tensors, opts.reduceOp)))
    return fallback_all_reduce(tensors, opts);
  return issue_all_reduce(issue_of(c10d::OpType::ALLREDUCE, "smddp:all_reduce", tensors, tensors, opts), opts.reduceOp);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  if (!can_reduce(tensors, opts.reduceOp) || (left_to_device(tensors) && !on_rails(tensors, opts.reduceOp)))
    return fallback_all_reduce_coalesced(tensors, opts);
  return issue_all_reduce(
      issue_of(c10d::OpType::ALLREDUCE_COALESCED, "smddp:all_reduce_coalesced", tensors, tensors, opts), opts.reduceOp);
}

// An all-reduce whose result the other ranks do not keep: they receive it needlessly, but sums have the same order and
// layouts the same treatment as there.
Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  only(tensors, "reduce");
  if (!can_reduce(tensors, opts.reduceOp) || left_to_device(tensors)) return fallback_reduce(tensors, opts);
  const int root = static_cast<int>(opts.rootRank);
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "smddp: reduce to rank ", root, " in a group of ", getSize());
  return issue(issue_of(c10d::OpType::REDUCE, "smddp:reduce", tensors, tensors, opts),
               [this, root, op = opts.reduceOp](TensorList, TensorList outputs, Milliseconds timeout) {
                 const at::Tensor& tensor = outputs[0];
                 const Reduce reduce = *reduce_op(op, tensor.scalar_type());
                 Flat flat = contribution(tensor, reduce);
                 const bool keep = root == getRank();
                 const at::Tensor out = keep ? flat.tensor() : at::empty_like(flat.tensor());
                 communicator_->all_reduce(flat.data(), out.data_ptr(), static_cast<std::size_t>(tensor.numel()),
                                           *arithmetic_type(tensor.scalar_type()), reduce.op, timeout, nullptr, root,
                                           form_of(tensor.scalar_type(), reduce));
                 if (keep) flat.finish();
               });
}

Backend::WorkPtr Backend::issue_all_reduce(const Issue& what, const c10d::ReduceOp& op) {
  return issue(what, [this, op](TensorList, TensorList tensors, Milliseconds timeout) {
    if (left_to_device(tensors)) {
      for (const at::Tensor& tensor : tensors) rails_->all_reduce(tensor, op, residuals_, timeout);
      return;
    }
    if (tensors.size() == 1) return reduce_alone(tensors[0], op, timeout);
    if (!share_memory(tensors)) return reduce_several(tensors, op, timeout);
    // A tensor that is there twice, as a tied weight's gradient may be, would be summed twice.
    Tensors copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
    reduce_several(copies, op, timeout);
    for (std::size_t i = 0; i < copies.size(); ++i) tensors[i].copy_(copies[i]);
  });
}

void Backend::reduce_several(TensorList tensors, const c10d::ReduceOp& op, Milliseconds timeout) {
  for (const std::vector<std::size_t>& group : fusion_groups(tensors)) {
    Tensors members;
    for (const std::size_t i : group) members.push_back(tensors[i]);
    if (members.size() == 1)
      reduce_alone(members[0], op, timeout);
    else
      reduce_fused(members, op, timeout);
  }
}

void Backend::reduce_alone(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) {
  const Reduce reduce = *reduce_op(op, tensor.scalar_type());
  std::shared_ptr<Residual> residual;
  const bool keeps_residual = communicator_->keeps_residuals(tensor.nbytes());
  if (keeps_residual) residual = residuals_.of(tensor);
  const auto sum = [&](void* data, std::int64_t count, std::uint32_t tag) {
    communicator_->all_reduce(data, data, static_cast<std::size_t>(count), *arithmetic_type(tensor.scalar_type()),
                              reduce.op, timeout, residual.get(), -1, form_of(tensor.scalar_type(), reduce) ^ tag);
  };
  if (tensor.is_cpu()) {
    Flat flat = contribution(tensor, reduce);
    sum(flat.data(), tensor.numel(), 0);
    return flat.finish();
  }
  const at::Tensor run = one_run(tensor, reduce.factor);
  all_reduce_staged(run.view({-1}), *communicator_, keeps_residual, kNoTimeout, sum);
  if (!run.is_same(tensor)) tensor.copy_(run);
}

// Without residuals, which belong to tensors: where a buffer would need them, its members go alone.
void Backend::reduce_fused(TensorList members, const c10d::ReduceOp& op, Milliseconds timeout) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : members) count += tensor.numel();
  const Reduce reduce = *reduce_op(op, members[0].scalar_type());
  const at::Tensor buffer = at::empty({count}, members[0].options().memory_format(at::MemoryFormat::Contiguous));
  if (communicator_->keeps_residuals(buffer.nbytes())) {
    for (const at::Tensor& tensor : members) reduce_alone(tensor, op, timeout);
    return;
  }
  const auto run = [&](std::int64_t& at, const at::Tensor& tensor) {
    at += tensor.numel();
    return buffer.narrow(0, at - tensor.numel(), tensor.numel()).view(tensor.sizes());
  };
  std::int64_t at = 0;
  for (const at::Tensor& tensor : members) run(at, tensor).copy_(tensor);
  if (reduce.factor.defined()) buffer.mul_(reduce.factor.to(buffer.options()));
  communicator_->all_reduce(buffer.data_ptr(), buffer.data_ptr(), static_cast<std::size_t>(count),
                            *arithmetic_type(buffer.scalar_type()), reduce.op, timeout, nullptr, -1,
                            form_of(buffer.scalar_type(), reduce) ^ form_of(members));
  at = 0;
  for (const at::Tensor& tensor : members) tensor.copy_(run(at, tensor));
}

// What a rank gives may lie in what another one's part overwrites, and a result in what others still read: gloo, which
// copies, allows both.
void Backend::gather_lists(TensorList outputs, const at::Tensor& input, Milliseconds timeout) {
  Flat in(input, true);
  std::vector<Flat> flats = flatten(outputs, false);
  std::vector<void*> runs;
  for (Flat& flat : flats) runs.push_back(flat.data());
  if (is_entangled(in.data(), runs, input.nbytes(), getRank())) in.detach(true);
  const MoveType type = move_type(input.scalar_type());
  communicator_->all_gather(in.data(), runs, input.nbytes(), timeout, type.dtype, type.tag);
  for (Flat& flat : flats) flat.finish();
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "smddp: all_gather takes one list of outputs, got ", outputs.size());
  const Tensors& outs = outputs[0];
  require_alike(outs, static_cast<std::size_t>(getSize()), input, "all_gather");
  if (!can_move(inputs) || !can_move(outs) || left_to_device(inputs)) return fallback_all_gather(outputs, inputs, opts);
  require_one_device(inputs, outs);
  Issue what = issue_of(c10d::OpType::ALLGATHER, "smddp:all_gather", inputs, outs, opts);
  // As of gloo, one list; as of NCCL, one within another, which hooks that quantize expect.
  what.lists = input.is_cpu() ? 0 : 1;
  return issue(what, [this](TensorList ins, TensorList results, Milliseconds timeout) {
    gather_lists(results, ins[0], timeout);
  });
}

// outputs[rank][i] is what `rank` has in inputs[i].
Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(getSize()), "smddp: all_gather_coalesced: expected ",
                    getSize(), " lists of outputs, one a rank, got ", outputs.size());
  Tensors flat_outputs;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "smddp: all_gather_coalesced: a list of ", list.size(),
                      " outputs for ", inputs.size(), " inputs");
    for (std::size_t i = 0; i < inputs.size(); ++i) require_alike({list[i]}, 1, inputs[i], "all_gather_coalesced");
    flat_outputs.insert(flat_outputs.end(), list.begin(), list.end());
  }
  TORCH_CHECK_VALUE(can_move(inputs) && can_move(flat_outputs), "smddp: all_gather_coalesced takes dense tensors");
  require_one_device(inputs, flat_outputs);
  Issue what = issue_of(c10d::OpType::ALLGATHER_COALESCED, "smddp:all_gather", inputs, flat_outputs, opts);
  what.lists = outputs.size();
  return issue(what, [this](TensorList ins, TensorList results, Milliseconds timeout) {
    for (std::size_t i = 0; i < ins.size(); ++i) {
      Tensors of_input;
      for (std::size_t at = i; at < results.size(); at += ins.size()) of_input.push_back(results[at]);
      gather_lists(of_input, ins[i], timeout);
    }
  });
}

void Backend::gather_into(const at::Tensor& output, const at::Tensor& input, Milliseconds timeout) {
  Flat in(input, true);
  Flat out(output, false);
  std::vector<void*> runs;
  runs.reserve(static_cast<std::size_t>(getSize()));
  for (int r = 0; r < getSize(); ++r) runs.push_back(run_of(out, getSize(), r));
  if (is_entangled(in.data(), runs, input.nbytes(), getRank())) in.detach(true);
  const MoveType type = move_type(input.scalar_type());
  communicator_->all_gather(in.data(), runs, input.nbytes(), timeout, type.dtype, type.tag);
  out.finish();
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return gather_all(c10d::OpType::_ALLGATHER_BASE, output, input, opts);
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return gather_all(kCoalesced, outputs, inputs, opts);
}

Backend::WorkPtr Backend::gather_all(c10d::OpType op, TensorList outputs, TensorList inputs,
                                     const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "smddp: all_gather_into_tensor: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  TORCH_CHECK_VALUE(can_move(inputs) && can_move(outputs), "smddp: all_gather_into_tensor takes dense tensors");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_multiple(outputs[i], inputs[i], getSize(), "all_gather_into_tensor");
  require_one_device(inputs, outputs);
  if (left_to_device(inputs)) return fallback_all_gather_into(outputs.vec(), inputs.vec(), opts);
  return issue(issue_of(op, "smddp:all_gather_into_tensor", inputs, outputs, opts),
               [this](TensorList ins, TensorList outs, Milliseconds timeout) {
                 for (std::size_t i = 0; i < ins.size(); ++i) gather_into(outs[i], ins[i], timeout);
               });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "smddp: reduce_scatter takes one list of inputs, got ", inputs.size());
  const Tensors& ins = inputs[0];
  require_alike(ins, static_cast<std::size_t>(getSize()), output, "reduce_scatter");
  if (!can_reduce(ins, opts.reduceOp) || !can_reduce(outputs, opts.reduceOp) || left_to_device(outputs))
    return fallback_reduce_scatter(outputs, inputs, opts);
  require_one_device(ins, outputs);
  return issue(issue_of(c10d::OpType::REDUCE_SCATTER, "smddp:reduce_scatter", ins, outputs, opts),
               [this, op = opts.reduceOp](TensorList all, TensorList results, Milliseconds timeout) {
                 const at::Tensor& result = results[0];
                 const Reduce reduce = *reduce_op(op, result.scalar_type());
                 Flat out(result, false);
                 std::vector<Flat> flats;
                 for (const at::Tensor& in : all) flats.push_back(contribution(in, reduce));
                 std::vector<const void*> runs;
                 for (Flat& flat : flats) runs.push_back(flat.data());
                 if (is_entangled(out.data(), runs, result.nbytes(), getRank())) out.detach(false);
                 communicator_->reduce_scatter(runs, out.data(), static_cast<std::size_t>(result.numel()),
                                               *arithmetic_type(result.scalar_type()), reduce.op, timeout);
                 out.finish();
               });
}

void Backend::scatter_into(const at::Tensor& output, const at::Tensor& input, const Reduce& reduce,
                           Milliseconds timeout) {
  Flat out(output, false);
  Flat in = contribution(input, reduce);
  std::vector<const void*> runs;
  runs.reserve(static_cast<std::size_t>(getSize()));
  for (int r = 0; r < getSize(); ++r) runs.push_back(run_of(in, getSize(), r));
  if (is_entangled(out.data(), runs, output.nbytes(), getRank())) out.detach(false);
  communicator_->reduce_scatter(runs, out.data(), static_cast<std::size_t>(output.numel()),
                                *arithmetic_type(output.scalar_type()), reduce.op, timeout);
  out.finish();
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  return scatter_all(c10d::OpType::_REDUCE_SCATTER_BASE, output, input, opts);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  return scatter_all(kCoalesced, outputs, inputs, opts);
}

Backend::WorkPtr Backend::scatter_all(c10d::OpType op, TensorList outputs, TensorList inputs,
                                      const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "smddp: reduce_scatter_tensor: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  if (!can_reduce(inputs, opts.reduceOp) || !can_reduce(outputs, opts.reduceOp) || left_to_device(outputs))
    return fallback_reduce_scatter_tensors(outputs.vec(), inputs.vec(), opts);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require_multiple(inputs[i], outputs[i], getSize(), "reduce_scatter_tensor");
  require_one_device(inputs, outputs);
  return issue(issue_of(op, "smddp:reduce_scatter_tensor", inputs, outputs, opts),
               [this, op = opts.reduceOp](TensorList ins, TensorList outs, Milliseconds timeout) {
                 for (std::size_t i = 0; i < ins.size(); ++i)
                   scatter_into(outs[i], ins[i], *reduce_op(op, outs[i].scalar_type()), timeout);
               });
}

// A rank that left the barrier out would be one operation behind: whatever goes wrong ends the group.
void Backend::wait_before_barrier(WorkBase& other, Milliseconds timeout) {
  try {
    other.wait(timeout);
  } catch (const Error& error) {
    communicator_->fail(error);
  } catch (const std::exception& error) {
    communicator_->fail(Error(ErrorKind::system, std::string("before the barrier: ") + error.what()));
  }
}

// As with gloo, collectives that were issued before are over when a barrier is.
Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  return issue(issue_of(c10d::OpType::BARRIER, "smddp:barrier", TensorList(), TensorList(), opts),
               [this, others = delegated_collectives()](TensorList, TensorList, Milliseconds timeout) {
                 for (const WorkPtr& other : others) wait_before_barrier(*other, timeout);
                 communicator_->barrier(timeout);
               });
}

}  // namespace smddp::torch_binding
