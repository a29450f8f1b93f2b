// Operations that the core does not have: the group's fallback backend carries them out.
#include "backend.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {
namespace {

Tensors flat_list(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

// Once the group is dead every operation says why, also those that the fallback could still try.
c10d::Backend& Backend::fallback(const Tensors& tensors, const char* operation) {
  refuse_after_fork(operation);
  require_cpu(tensors, operation);
  communicator_->check();
  return *fallback_;
}

Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  // torch's gloo takes sparse tensors through its plain all-reduce.
  return fallback(tensors, "all_reduce").allreduce(tensors, opts);
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return fallback(tensors, "reduce").reduce(tensors, opts);
}

Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return fallback(inputs, "all_gather_coalesced").allgather_coalesced(outputs, inputs, opts);
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  return fallback(inputs, "gather").gather(outputs, inputs, opts);
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  return fallback(flat_list(inputs), "scatter").scatter(outputs, inputs, opts);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  return fallback({output, input}, "all_to_all_single").alltoall_base(output, input, output_splits, input_splits, opts);
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return fallback(inputs, "all_to_all").alltoall(outputs, inputs, opts);
}

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  return fallback(tensors, "send").send(tensors, destination, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  return fallback(tensors, "recv").recv(tensors, source, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return fallback(tensors, "recv").recvAnysource(tensors, tag);
}

}  // namespace smddp::torch_binding
