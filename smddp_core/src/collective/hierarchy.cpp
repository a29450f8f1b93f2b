#include "collective/hierarchy.hpp"

#include "memory.hpp"

namespace smddp {
namespace {

// Sums inside a host: unrounded and undivided.
Reduction inner(const Reduction& reduction) { return {reduction.op, reduction.in, accumulator_of(reduction.in), 1}; }

// Sums between hosts: of what inner() left, divided and rounded.
Reduction outer(const Reduction& reduction) {
  return {reduction.op, accumulator_of(reduction.in), reduction.out, reduction.divisor};
}

}  // namespace

Hierarchy::Hierarchy(const Topology& topology, std::unique_ptr<Tier> local, std::unique_ptr<Tier> rail)
    : topology_(topology), local_(std::move(local)), rail_(std::move(rail)) {}

// When the rail's barrier ends, every host's rank on it has left its host's barrier: all ranks have arrived.
void Hierarchy::barrier(const Op& op) {
  local_->barrier(op);
  rail_->barrier(op);
}

void Hierarchy::broadcast(const Op& op, void* data, std::size_t bytes, int root) {
  int root_host = 0;
  int root_local = 0;
  for (int h = 0; h < topology_.host_count(); ++h)
    for (int l = 0; l < topology_.local_size(); ++l)
      if (topology_.hosts[static_cast<std::size_t>(h)][static_cast<std::size_t>(l)] == root) {
        root_host = h;
        root_local = l;
      }
  // The other rails only compare headers.
  if (topology_.local_rank == root_local)
    rail_->broadcast(op, data, bytes, root_host);
  else
    rail_->barrier(op);
  local_->broadcast(op, data, bytes, root_local);
}

void Hierarchy::all_gather(const Op& op, const std::vector<MutableBlock>& blocks) {
  std::vector<MutableBlock> on_rail;
  for (const int rank : topology_.rail()) on_rail.push_back(blocks[static_cast<std::size_t>(rank)]);
  rail_->all_gather(op, on_rail);
  std::vector<MutableBlock> on_host;
  for (const auto& members : topology_.hosts) {
    on_host.clear();
    for (const int rank : members) on_host.push_back(blocks[static_cast<std::size_t>(rank)]);
    local_->all_gather(op, on_host);
  }
}

void Hierarchy::reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const Reduction inside = inner(reduction);
  const std::size_t width = size_of(inside.out);
  std::size_t total = 0;
  for (const int rank : topology_.rail()) total += blocks[static_cast<std::size_t>(rank)].count;
  std::byte* partial = partial_.at_least(total * width);
  std::vector<Block> sums;
  std::vector<Block> on_host;
  for (const auto& members : topology_.hosts) {
    on_host.clear();
    for (const int rank : members) on_host.push_back(blocks[static_cast<std::size_t>(rank)]);
    local_->reduce_scatter(op, on_host, partial, inside);
    const std::size_t count = on_host[static_cast<std::size_t>(topology_.local_rank)].count;
    sums.push_back({partial, count});
    partial += count * width;
  }
  rail_->reduce_scatter(op, sums, out, outer(reduction));
}

void Hierarchy::all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const int locals = topology_.local_size();
  const Reduction inside = inner(reduction);
  const std::size_t in_width = size_of(reduction.in);
  const std::size_t out_width = size_of(reduction.out);
  std::vector<Block> slices;
  std::vector<MutableBlock> results;
  for (int l = 0; l < locals; ++l) {
    const Part part = part_of(count, locals, l);
    slices.push_back({part.count ? bytes_at(in, part.first * in_width) : nullptr, part.count});
    results.push_back({part.count ? bytes_at(out, part.first * out_width) : nullptr, part.count * out_width});
  }
  const Block& slice = slices[static_cast<std::size_t>(topology_.local_rank)];
  void* result = results[static_cast<std::size_t>(topology_.local_rank)].data;
  // Where the partial sum has the result's type it is built in the result's place.
  void* partial = inside.out == reduction.out ? result : partial_.at_least(slice.count * size_of(inside.out));
  local_->reduce_scatter(op, slices, partial, inside);
  rail_->all_reduce(op, partial, result, slice.count, outer(reduction));
  local_->all_gather(op, results);
}

}  // namespace smddp
