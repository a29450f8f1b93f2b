#include "collective/hierarchy.hpp"

#include <algorithm>

#include "memory.hpp"

namespace smddp {
namespace {

// A message is cut into at least this many blocks if they are not too small: work inside the host on one block runs
// while another is on the wire, and only that on the first and the last is seen.
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kSmallestBlock = std::size_t{256} << 10;

// Sums inside a host: unrounded and undivided.
Reduction inner(const Reduction& reduction) {
  return {reduction.op, reduction.in, accumulator_of(reduction.in, reduction.op), 1};
}

// Sums between hosts: of what inner() left, divided and rounded.
Reduction outer(const Reduction& reduction) {
  return {reduction.op, accumulator_of(reduction.in, reduction.op), reduction.out, reduction.divisor};
}

Block run_of(const Block& block, std::size_t at, std::size_t step, std::size_t width) {
  if (block.count <= at) return {};
  return {bytes_at(block.data, at * width), std::min(step, block.count - at)};
}

MutableBlock run_of(const MutableBlock& block, std::size_t at, std::size_t step) {
  if (block.bytes <= at) return {};
  return {bytes_at(block.data, at), std::min(step, block.bytes - at)};
}

}  // namespace

Hierarchy::Hierarchy(const Topology& topology, std::unique_ptr<Tier> local, std::unique_ptr<NetTier> rail)
    : topology_(topology), local_(std::move(local)), rail_(std::move(rail)), partials_(kAhead + 1) {}

std::size_t Hierarchy::step_of(std::size_t bytes) const {
  const std::size_t wanted = std::max(bytes / kBlocks, kSmallestBlock);
  return std::min(wanted, rail_->settings().block_bytes);
}

std::size_t Hierarchy::summed_step_of(std::size_t bytes) const {
  const auto rails = static_cast<std::size_t>(topology_.local_size());
  return std::min(step_of(bytes), rails * rail_->settings().summed_block(rail_->size()));
}

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
  const bool on_rail = topology_.local_rank == root_local;
  std::size_t arrived = 0;
  if (on_rail)
    rail_->start_broadcast(op, data, bytes, root_host, arrived);
  else
    rail_->barrier(op);
  const std::size_t step = std::max<std::size_t>(step_of(bytes), 1);
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(step, bytes - at);
    if (on_rail) rail_->wait_for(op, arrived, at + n);
    local_->broadcast(op, bytes_at(data, at), n, root_local);
    at += n;
  } while (at < bytes);
  rail_->finish(op);
}

// The blocks of all ranks have one size here (Communicator::all_gather).
void Hierarchy::all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) {
  std::vector<MutableBlock> on_rail;
  for (const int rank : topology_.rail()) on_rail.push_back(blocks[static_cast<std::size_t>(rank)]);
  std::vector<std::size_t> arrived;
  rail_->start_all_gather(op, in, on_rail, arrived);
  const std::size_t bytes = blocks[0].bytes;
  const std::size_t step = step_of(bytes);
  std::size_t at = 0;
  do {
    // This host's own ranks first: their blocks need not be waited for.
    for (int k = 0; k < topology_.host_count(); ++k) {
      const int host = (topology_.host + k) % topology_.host_count();
      const auto h = static_cast<std::size_t>(host);
      std::vector<MutableBlock> on_host;
      for (const int rank : topology_.hosts[h])
        on_host.push_back(run_of(blocks[static_cast<std::size_t>(rank)], at, step));
      rail_->wait_for(op, arrived[h], std::min(at + step, bytes));
      local_->all_gather(op, on_host[static_cast<std::size_t>(topology_.local_rank)].data, on_host);
    }
    at += step;
  } while (at < bytes);
  rail_->finish(op);
}

void Hierarchy::reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const Reduction inside = inner(reduction);
  const std::size_t in_width = size_of(reduction.in);
  const std::size_t width = size_of(inside.out);
  const auto hosts = static_cast<std::size_t>(topology_.host_count());
  const std::size_t count = blocks[0].count;
  const std::size_t step = std::max<std::size_t>(summed_step_of(count * width * hosts) / width / hosts, 1);
  ReducePipe pipe = rail_->start_reduction(op, outer(reduction), count * hosts);
  std::size_t turn = 0;
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(step, count - at);
    if (turn >= partials_.size()) pipe.finish(turn - partials_.size());
    std::byte* partial = partials_[turn % partials_.size()].at_least(n * width * hosts);
    std::vector<Block> sums;
    for (const auto& members : topology_.hosts) {
      std::vector<Block> on_host;
      for (const int rank : members) on_host.push_back(run_of(blocks[static_cast<std::size_t>(rank)], at, n, in_width));
      local_->reduce_scatter(op, on_host, partial, inside);
      sums.push_back({n ? partial : nullptr, n});
      partial += n * width;
    }
    pipe.reduce_scatter(sums, n ? bytes_at(out, at * size_of(reduction.out)) : nullptr);
    at += n;
    ++turn;
  } while (at < count);
  pipe.close();
  pipe.finish_all();
}

// Everybody in the host sums everything, so that every rail can carry all of it and no third step is needed.
void Hierarchy::all_reduce_small(const Op& op, const void* in, void* out, std::size_t count,
                                 const Reduction& reduction) {
  const Reduction inside = inner(reduction);
  void* partial = inside.out == reduction.out ? out : partials_[0].at_least(count * size_of(inside.out));
  local_->all_reduce(op, in, partial, count, inside);
  rail_->all_reduce(op, partial, out, count, outer(reduction));
}

void Hierarchy::all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t wide = count * size_of(accumulator_of(reduction.in, reduction.op));
  // Inside a host, all_reduce() knows no type but the input's.
  if (accumulator_of(reduction.in, reduction.op) == reduction.in &&
      wide <= rail_->settings().one_shot_bytes / static_cast<std::size_t>(topology_.local_size()))
    return all_reduce_small(op, in, out, count, reduction);
  const std::size_t in_width = size_of(reduction.in);
  const std::size_t out_width = size_of(reduction.out);
  const std::size_t step =
      std::max<std::size_t>(summed_step_of(wide) / size_of(accumulator_of(reduction.in, reduction.op)), 1);
  std::size_t mine = 0;
  const int locals = topology_.local_size();
  for (std::size_t at = 0; at < count; at += step)
    mine += part_of(std::min(step, count - at), locals, topology_.local_rank).count;
  ReducePipe pipe = rail_->start_reduction(op, outer(reduction), mine);
  std::size_t turn = 0;
  for (std::size_t at = 0; at < count; at += step, ++turn) {
    reduce_block(op, pipe, turn, bytes_at(in, at * in_width), bytes_at(out, at * out_width), std::min(step, count - at),
                 reduction);
    // Only now: while this waits for results, and for the host, the wire has the newer blocks.
    if (turn >= kAhead) gather_block(op, pipe, turn - kAhead, step, out, count, out_width);
  }
  pipe.close();
  for (std::size_t k = turn > kAhead ? turn - kAhead : 0; k < turn; ++k)
    gather_block(op, pipe, k, step, out, count, out_width);
  pipe.finish_all();
}

// Sums a block inside the host, this rank its slice of it, and hands the slice to the wire.
void Hierarchy::reduce_block(const Op& op, ReducePipe& pipe, std::size_t turn, const std::byte* in, std::byte* out,
                             std::size_t count, const Reduction& reduction) {
  const Reduction inside = inner(reduction);
  const int locals = topology_.local_size();
  std::vector<Block> slices;
  for (int l = 0; l < locals; ++l) {
    const Part part = part_of(count, locals, l);
    slices.push_back({part.count ? in + part.first * size_of(reduction.in) : nullptr, part.count});
  }
  const Part mine = part_of(count, locals, topology_.local_rank);
  std::byte* result = mine.count ? out + mine.first * size_of(reduction.out) : nullptr;
  // Where the partial sum has the result's type it is built in the result's place. Elsewhere the memory's last user is
  // finished: its block was gathered.
  void* partial = result;
  if (inside.out != reduction.out)
    partial = partials_[turn % partials_.size()].at_least(mine.count * size_of(inside.out));
  local_->reduce_scatter(op, slices, partial, inside);
  pipe.all_reduce(partial, result, mine.count);
}

// Waits for block `turn` and spreads it in the host.
void Hierarchy::gather_block(const Op& op, ReducePipe& pipe, std::size_t turn, std::size_t step, void* out,
                             std::size_t count, std::size_t width) {
  const std::size_t at = turn * step;
  const std::size_t n = std::min(step, count - at);
  std::vector<MutableBlock> slices;
  for (int l = 0; l < topology_.local_size(); ++l) {
    const Part part = part_of(n, topology_.local_size(), l);
    slices.push_back({part.count ? bytes_at(out, (at + part.first) * width) : nullptr, part.count * width});
  }
  pipe.finish(turn);
  local_->all_gather(op, slices[static_cast<std::size_t>(topology_.local_rank)].data, slices);
}

}  // namespace smddp
