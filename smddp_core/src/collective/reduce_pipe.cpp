#include "collective/reduce_pipe.hpp"

#include <algorithm>

#include "collective/wire_format.hpp"
#include "memory.hpp"

namespace smddp {
namespace {

// Small blocks are faster (see SMDDP_NET_SHARD_BYTES). An all-reduce waits for results to come back, and a long way
// wants much on it meanwhile, which costs nothing where the way is short: 16 MiB between two hosts take the same time
// with 3 blocks of 512 KiB and with 24. What a reduce-scatter has under way is in the sockets' buffers; more blocks are
// more memory to go through (16 MiB in 2.8 ms instead of 2.6).
constexpr std::size_t kUnderWay = std::size_t{6} << 20;
constexpr std::size_t kMostBlocks = 12;

std::size_t depth_of(const Op& op, std::size_t ranks, const NetSettings& settings) {
  if (op.header.kind != OpKind::all_reduce) return ReducePipe::kLeastDepth;
  const std::size_t block = settings.summed_block(static_cast<int>(ranks));
  return std::clamp(kUnderWay / block, ReducePipe::kLeastDepth, kMostBlocks);
}

// What an all-reduce sends back has the type of the wire; a reduce-scatter's result stays here, unrounded.
DType result_type(DType wire, const Op& op, const Reduction& reduction) {
  return wire == reduction.in || op.header.kind != OpKind::all_reduce ? reduction.out : wire;
}

// A shard takes several pieces where they are not too small: the first results leave while the last inputs arrive.
constexpr std::size_t kPieces = 2;
constexpr std::size_t kSmallestPiece = std::size_t{16} << 10;

// `shard` elements: about what a rank sums of a block.
Exchange::Format format_of(DType wire, const Op& op, const Reduction& reduction, std::size_t shard,
                           const NetSettings& settings) {
  Exchange::Format format;
  format.in_width = size_of(wire);
  format.out_width = size_of(result_type(wire, op, reduction));
  const std::size_t width = std::max(format.in_width, format.out_width);
  const std::size_t wanted = std::max(shard / kPieces * width, kSmallestPiece);
  format.piece = std::max<std::size_t>(std::min(wanted, settings.piece_bytes) / width, 1);
  return format;
}

// What a rank sums of a block of a message of `total` elements.
std::size_t shard_of(std::size_t total, const Reduction& reduction, std::size_t ranks, const NetSettings& settings) {
  return std::min(total, settings.summed_block(static_cast<int>(ranks)) / size_of(reduction.in)) / ranks;
}

}  // namespace

DType wire_type_of(const Reduction& reduction, std::size_t bytes, const NetSettings& settings) {
  const bool sum = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::avg;
  const bool plain = reduction.in == DType::f32 && reduction.out == DType::f32;
  return sum && plain && bytes >= settings.wire_min_bytes ? settings.wire : reduction.in;
}

ReducePipe::ReducePipe(Wire& wire, const std::vector<int>& members, int me, const Op& op, const Reduction& reduction,
                       std::size_t total, const NetSettings& settings, PipeMemory& memory)
    : wire_(wire),
      ranks_(static_cast<int>(members.size())),
      me_(me),
      op_(op),
      reduction_(reduction),
      settings_(settings),
      memory_(memory),
      wire_type_(wire_type_of(reduction, op.header.bytes, settings)),
      depth_(depth_of(op, members.size(), settings)),
      exchange_(wire, members, me,
                format_of(wire_type_, op, reduction, shard_of(total, reduction, members.size(), settings), settings)) {
  memory_.incoming.resize(std::max(memory_.incoming.size(), depth_));
  // A block's code is read by sends that may still be under way when it is finished: one more than blocks.
  memory_.encoded.resize(std::max(memory_.encoded.size(), depth_ + 1));
  if (coded() && op.residual) op.residual->begin(total);
}

// Small blocks are summed by fewer ranks than there are, by others each time: a message costs a fixed time, however
// short. With a residual the same rank must always sum the same elements.
Part ReducePipe::shard(std::size_t count, int r) const {
  const std::size_t bytes = count * size_of(wire_type_);
  const auto all = static_cast<std::size_t>(ranks_);
  const std::size_t servers =
      std::clamp<std::size_t>(bytes / std::max<std::size_t>(settings_.min_shard_bytes, 1), 1, all);
  const std::size_t first = coded() ? 0 : static_cast<std::size_t>(op_.header.sequence) % all;
  const std::size_t place = (static_cast<std::size_t>(r) + all - first) % all;
  if (place >= servers) return {};
  return part_of(count, static_cast<int>(servers), static_cast<int>(place));
}

std::byte* ReducePipe::room_for(std::size_t own_count) {
  Scratch& scratch = memory_.incoming[decodes_.size() % depth_];
  return scratch.at_least(static_cast<std::size_t>(ranks_ - 1) * own_count * size_of(wire_type_));
}

// `in` as it travels, one block after another.
std::byte* ReducePipe::encoded(const std::vector<Block>& in) {
  const std::size_t n = decodes_.size();
  const std::size_t slots = depth_ + 1;
  if (n >= slots) wire_.run_until(op_, [&] { return exchange_.released(n - slots); });
  std::size_t count = 0;
  for (const Block& block : in) count += block.count;
  std::byte* const code = memory_.encoded[n % slots].at_least(count * size_of(wire_type_));
  std::byte* to = code;
  for (const Block& block : in) {
    float* left = op_.residual ? op_.residual->sent(sent_at_) : nullptr;
    encode(wire_type_, to, static_cast<const float*>(block.data), block.count, left);
    sent_at_ += block.count;
    to += block.count * size_of(wire_type_);
  }
  return code;
}

Exchange::Reduce ReducePipe::reducer(std::size_t own_count) {
  const int ranks = ranks_;
  Reduction plain = reduction_;
  plain.in = wire_type_;
  const DType result = result_type(wire_type_, op_, reduction_);
  if (result == reduction_.out || !op_.residual) {
    plain.out = result;
    return [ranks, plain](void* out, const void* const* sources, std::size_t, std::size_t count) {
      reduce_in_pairs(out, sources, ranks, count, plain);
    };
  }
  const std::size_t first = reduced_at_;
  reduced_at_ += own_count;
  Residual* residual = op_.residual;
  return [ranks, plain, residual, first, sum = std::vector<float>()](void* out, const void* const* sources,
                                                                     std::size_t at, std::size_t count) mutable {
    sum.resize(count);
    reduce_in_pairs(sum.data(), sources, ranks, count, plain);
    encode(plain.in, out, sum.data(), count, residual->reduced(first + at, count));
  };
}

void ReducePipe::push(Shards shards) {
  const std::size_t own = shards.in[static_cast<std::size_t>(me_)].count;
  Exchange::Reduce reduce = reducer(own);
  exchange_.push(std::move(shards), room_for(own), std::move(reduce));
}

void ReducePipe::all_reduce(const void* in, void* out, std::size_t count) {
  if (decodes_.size() >= depth_) finish(decodes_.size() - depth_);
  const std::size_t in_width = size_of(wire_type_);
  const std::size_t out_width = size_of(result_type(wire_type_, op_, reduction_));
  Decode decode;
  const void* from = in;
  void* to = out;
  if (coded()) {
    from = to = encoded({{in, count}});
    decode = {static_cast<float*>(out), from, count};
  }
  Shards shards;
  for (int r = 0; r < ranks_; ++r) {
    const Part part = shard(count, r);
    shards.in.push_back({part.count ? bytes_at(from, part.first * in_width) : nullptr, part.count});
    shards.results.push_back({part.count ? bytes_at(to, part.first * out_width) : nullptr, part.count * out_width});
  }
  shards.own = shards.results[static_cast<std::size_t>(me_)].data;
  push(std::move(shards));
  decodes_.push_back(decode);
}

void ReducePipe::reduce_scatter(const std::vector<Block>& in, void* out) {
  if (decodes_.size() >= depth_) finish(decodes_.size() - depth_);
  Shards shards;
  shards.in = in;
  shards.own = out;
  if (coded()) {
    const std::byte* code = encoded(in);
    for (Block& block : shards.in) {
      block.data = code;
      code += block.count * size_of(wire_type_);
    }
  }
  push(std::move(shards));
  decodes_.emplace_back();
}

void ReducePipe::finish(std::size_t n) {
  for (; finished_ <= n; ++finished_) {
    // Results that come back say that the input has left; where none do, that must be waited for.
    const bool travel = op_.header.kind == OpKind::all_reduce;
    wire_.run_until(op_, [&] { return travel ? exchange_.finished(finished_) : exchange_.released(finished_); });
    const Decode& due = decodes_[finished_];
    if (due.count > 0) decode(wire_type_, due.to, due.from, due.count);
  }
}

void ReducePipe::finish_all() {
  if (!decodes_.empty()) finish(decodes_.size() - 1);
  wire_.run(op_);
}

}  // namespace smddp
