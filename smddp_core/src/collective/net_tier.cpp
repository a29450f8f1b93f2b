#include "collective/net_tier.hpp"

#include <algorithm>

#include "memory.hpp"

namespace smddp {
namespace {

// A shard is reduced in pieces of this size, so that summing and sending back begin before all of it has arrived. Large
// enough that the bookkeeping (a callback a piece and peer) disappears beside the transfer.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

// Up to this size a broadcast goes straight from the root: a second hop costs more than the root's extra bytes.
constexpr std::size_t kDirectBroadcastBytes = std::size_t{64} << 10;

}  // namespace

NetTier::NetTier(Wire& wire, std::vector<int> members, int rank, std::size_t block_bytes)
    : wire_(wire),
      members_(std::move(members)),
      me_(rank),
      block_bytes_(block_bytes),
      headers_(members_.size()),
      sources_(members_.size()) {}

// Data that follows is read into place only after its header has been compared: the pieces of a peer arrive in order.
void NetTier::post_headers(const Op& op) {
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    OpHeader& theirs = headers_[static_cast<std::size_t>(r)];
    wire_.send(global(r), &op.header, sizeof(OpHeader));
    wire_.recv(global(r), &theirs, sizeof(OpHeader),
               [this, &op, &theirs, r] { check_same(op, global(me_), theirs, global(r)); });
  }
}

void NetTier::barrier(const Op& op) {
  post_headers(op);
  wire_.run(op);
}

void NetTier::broadcast(const Op& op, void* data, std::size_t bytes, int root) {
  post_headers(op);
  const bool scatter = bytes > kDirectBroadcastBytes && size() > 2;
  const auto part = [&](int r) { return part_of(bytes, size(), r); };
  // `relay(r)` is called where part r of the message is in place, and sends it to everyone who lacks it.
  const auto relay = [&](int r) {
    for (int k = 1; k < size(); ++k)
      if (after(k) != root) wire_.send(global(after(k)), bytes_at(data, part(r).first), part(r).count);
  };
  if (me_ == root) {
    for (int k = 1; k < size(); ++k) {
      const int r = after(k);
      if (scatter)
        wire_.send(global(r), bytes_at(data, part(r).first), part(r).count);
      else
        wire_.send(global(r), data, bytes);
    }
    if (scatter) relay(root);
  } else if (!scatter) {
    wire_.recv(global(root), data, bytes);
  } else {
    wire_.recv(global(root), bytes_at(data, part(me_).first), part(me_).count, [&] { relay(me_); });
    wire_.recv(global(root), bytes_at(data, part(root).first), part(root).count);
    for (int k = 1; k < size(); ++k) {
      const int r = after(k);
      if (r != root) wire_.recv(global(r), bytes_at(data, part(r).first), part(r).count);
    }
  }
  wire_.run(op);
}

void NetTier::all_gather(const Op& op, const std::vector<MutableBlock>& blocks) {
  post_headers(op);
  const MutableBlock& mine = blocks[static_cast<std::size_t>(me_)];
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    const MutableBlock& theirs = blocks[static_cast<std::size_t>(r)];
    wire_.send(global(r), mine.data, mine.bytes);
    wire_.recv(global(r), theirs.data, theirs.bytes);
  }
  wire_.run(op);
}

void NetTier::reduce_piece(const Collect& collect, const Reduction& reduction, std::size_t at, std::size_t count) {
  const std::size_t in_width = size_of(reduction.in);
  const std::size_t out_width = size_of(reduction.out);
  for (int r = 0; r < size(); ++r) {
    // Peers' shards lie one after another in rank order, without this rank's.
    const std::size_t place = static_cast<std::size_t>(r < me_ ? r : r - 1) * collect.count + at;
    sources_[static_cast<std::size_t>(r)] =
        r == me_ ? collect.own + at * in_width : incoming_.at_least(0) + place * in_width;
  }
  reduce_into(collect.out + at * out_width, sources_.data(), size(), count, reduction);
  if (!collect.send_back) return;
  for (int k = 1; k < size(); ++k) wire_.send(global(after(k)), collect.out + at * out_width, count * out_width);
}

// `collect` and `reduction` must live until the wire has run.
void NetTier::post_collect(const Collect& collect, const Reduction& reduction) {
  if (collect.count == 0) return;
  const std::size_t width = size_of(reduction.in);
  const std::size_t step = kPieceBytes / width;
  std::byte* incoming = incoming_.at_least(static_cast<std::size_t>(size() - 1) * collect.count * width);
  arrived_.assign((collect.count + step - 1) / step, 0);
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    std::byte* shard = incoming + static_cast<std::size_t>(r < me_ ? r : r - 1) * collect.count * width;
    for (std::size_t at = 0; at < collect.count; at += step) {
      const std::size_t count = std::min(step, collect.count - at);
      wire_.recv(global(r), shard + at * width, count * width, [this, &collect, &reduction, at, count, step] {
        if (++arrived_[at / step] == size() - 1) reduce_piece(collect, reduction, at, count);
      });
    }
  }
}

void NetTier::reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) {
  const std::size_t in_width = size_of(reduction.in);
  std::size_t longest = 0;
  for (const Block& block : blocks) longest = std::max(longest, block.count);
  // The blocks of all ranks together are one exchange of at most block_bytes_.
  const std::size_t step = std::max<std::size_t>(block_bytes_ / in_width / static_cast<std::size_t>(size()), 1);
  std::size_t at = 0;
  do {
    const auto piece = [&](int r) {
      const std::size_t count = blocks[static_cast<std::size_t>(r)].count;
      return count > at ? std::min(count - at, step) : 0;
    };
    const auto block_at = [&](int r) { return bytes_at(blocks[static_cast<std::size_t>(r)].data, at * in_width); };
    if (at == 0) post_headers(op);
    for (int k = 1; k < size(); ++k)
      if (piece(after(k)) > 0) wire_.send(global(after(k)), block_at(after(k)), piece(after(k)) * in_width);
    Collect collect;
    collect.count = piece(me_);
    if (collect.count > 0) {
      collect.own = block_at(me_);
      collect.out = bytes_at(out, at * size_of(reduction.out));
    }
    post_collect(collect, reduction);
    wire_.run(op);
    at += step;
  } while (at < longest);
}

// In place is safe: the result of shard i comes back only after rank i has received this rank's input of it.
void NetTier::all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) {
  const std::size_t in_width = size_of(reduction.in);
  const std::size_t out_width = size_of(reduction.out);
  const std::size_t step = std::max<std::size_t>(block_bytes_ / in_width, 1);
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(step, count - at);
    if (at == 0) post_headers(op);
    for (int k = 1; k < size() && n > 0; ++k) {
      const Part theirs = part_of(n, size(), after(k));
      wire_.send(global(after(k)), bytes_at(in, (at + theirs.first) * in_width), theirs.count * in_width);
    }
    Collect collect;
    const Part own = part_of(n, size(), me_);
    collect.count = own.count;
    collect.send_back = true;
    if (own.count > 0) {
      collect.own = bytes_at(in, (at + own.first) * in_width);
      collect.out = bytes_at(out, (at + own.first) * out_width);
    }
    post_collect(collect, reduction);
    for (int k = 1; k < size() && n > 0; ++k) {
      const Part theirs = part_of(n, size(), after(k));
      wire_.recv(global(after(k)), bytes_at(out, (at + theirs.first) * out_width), theirs.count * out_width);
    }
    wire_.run(op);
    at += step;
  } while (at < count);
}

}  // namespace smddp
