#include "collective/exchange.hpp"

#include <algorithm>
#include <utility>

#include "memory.hpp"

namespace smddp {

Exchange::Exchange(Wire& wire, const std::vector<int>& members, int me, const Format& format)
    : wire_(wire), members_(members), me_(me), format_(format), sources_(members.size()) {}

void Exchange::push(Shards shards, std::byte* incoming, Reduce reduce) {
  retire();
  Active* previous = blocks_.empty() ? nullptr : &blocks_.back();
  blocks_.emplace_back();
  Active& block = blocks_.back();
  block.shards = std::move(shards);
  block.incoming = incoming;
  block.reduce = std::move(reduce);
  outbox_.push_back({&block, false});
  expect_shards(block);
  if (previous) {
    outbox_.push_back({previous, true});
    expect_results(*previous);
  }
  pump();
}

void Exchange::close() {
  if (blocks_.empty()) return;
  outbox_.push_back({&blocks_.back(), true});
  expect_results(blocks_.back());
  pump();
}

// Peers' shards lie one after another in rank order, without this rank's.
void Exchange::expect_shards(Active& block) {
  const std::size_t count = own_count(block);
  block.arrived.assign(pieces(count), 0);
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    std::byte* shard = block.incoming + static_cast<std::size_t>(r < me_ ? r : r - 1) * count * format_.in_width;
    for (std::size_t p = 0; p < block.arrived.size(); ++p) {
      const std::size_t at = p * format_.piece;
      wire_.recv(global(r), shard + at * format_.in_width, std::min(format_.piece, count - at) * format_.in_width,
                 [this, &block, p] { arrive(block, p); });
    }
  }
}

void Exchange::expect_results(Active& block) {
  block.results_due = true;
  if (block.shards.results.empty()) return;
  for (int k = 1; k < size(); ++k) {
    const int r = after(k);
    const std::size_t count = block.shards.in[static_cast<std::size_t>(r)].count;
    auto* to = static_cast<std::byte*>(block.shards.results[static_cast<std::size_t>(r)].data);
    for (std::size_t at = 0; at < count; at += format_.piece) {
      ++block.missing;
      wire_.recv(global(r), to + at * format_.out_width, std::min(format_.piece, count - at) * format_.out_width,
                 [&block] { --block.missing; });
    }
  }
}

// The pieces of a peer arrive in order, so pieces are complete in order too.
void Exchange::arrive(Active& block, std::size_t piece) {
  if (++block.arrived[piece] < size() - 1) return;
  reduce_piece(block, piece);
  ++block.reduced;
  pump();
}

void Exchange::reduce_piece(Active& block, std::size_t piece) {
  const std::size_t count = own_count(block);
  const std::size_t at = piece * format_.piece;
  for (int r = 0; r < size(); ++r) {
    const std::size_t place = static_cast<std::size_t>(r < me_ ? r : r - 1) * count + at;
    sources_[static_cast<std::size_t>(r)] =
        r == me_ ? bytes_at(block.shards.in[static_cast<std::size_t>(me_)].data, at * format_.in_width)
                 : block.incoming + place * format_.in_width;
  }
  block.reduce(bytes_at(block.shards.own, at * format_.out_width), sources_.data(), at,
               std::min(format_.piece, count - at));
}

void Exchange::send_shards(Active& block) {
  for (int k = 1; k < size(); ++k) {
    const Block& shard = block.shards.in[static_cast<std::size_t>(after(k))];
    for (std::size_t at = 0; at < shard.count; at += format_.piece) {
      ++block.leaving;
      wire_.send(global(after(k)), bytes_at(shard.data, at * format_.in_width),
                 std::min(format_.piece, shard.count - at) * format_.in_width, [&block] { --block.leaving; });
    }
  }
}

// Sends what is ready; true when that was the rest.
bool Exchange::send_results(Active& block) {
  if (block.shards.results.empty()) return true;
  const std::size_t count = own_count(block);
  for (; block.sent_back < block.reduced; ++block.sent_back) {
    const std::size_t at = block.sent_back * format_.piece;
    for (int k = 1; k < size(); ++k) {
      ++block.leaving;
      wire_.send(global(after(k)), bytes_at(block.shards.own, at * format_.out_width),
                 std::min(format_.piece, count - at) * format_.out_width, [&block] { --block.leaving; });
    }
  }
  return block.sent_back == block.arrived.size();
}

void Exchange::pump() {
  while (!outbox_.empty()) {
    const Step step = outbox_.front();
    if (step.results) {
      if (!send_results(*step.block)) return;
      step.block->results_posted = true;
    } else {
      send_shards(*step.block);
    }
    outbox_.pop_front();
  }
}

bool Exchange::finished(const Active& block) const {
  return block.results_due && block.missing == 0 && block.reduced == block.arrived.size();
}

bool Exchange::finished(std::size_t block) const { return block < first_ || finished(blocks_[block - first_]); }

bool Exchange::released(std::size_t block) const {
  if (block < first_) return true;
  const Active& active = blocks_[block - first_];
  return finished(active) && active.results_posted && active.leaving == 0;
}

void Exchange::retire() {
  while (!blocks_.empty() && released(first_)) {
    blocks_.pop_front();
    ++first_;
  }
}

}  // namespace smddp
