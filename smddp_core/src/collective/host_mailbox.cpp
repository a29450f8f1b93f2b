// Collectives of a host through mailboxes, of which every two ranks have two.
//
// Where two cores have no cache in common, what an operation costs is lines of memory that go from one core's cache to
// the other's. Through slots a line goes twice: to the reader, and back to the writer, before it can write anew. Of a
// mailbox the last reader is the next writer: an all-reduce writes each sum over the parts it was made of, and what is
// only sent one way turns the mailboxes. For more ranks a sum is copied more often, but into lines that are at hand.
#include <algorithm>

#include "collective/host_tier.hpp"
#include "kernel/reduce.hpp"
#include "memory.hpp"

namespace smddp {
namespace {

// A sum is copied on out of L1.
constexpr std::size_t kCopiedBytes = std::size_t{8} << 10;

/// How much of a block of `length` there is from `at` on, at most `step`.
std::size_t rest_of(std::size_t length, std::size_t at, std::size_t step) {
  return length > at ? std::min(length - at, step) : 0;
}

}  // namespace

void HostTier::all_gather_mailboxes(const Op& op, const void* in, const std::vector<MutableBlock>& blocks,
                                    std::size_t longest) {
  const Stores stores = stores_for_result(longest * blocks.size());
  const std::size_t step = arena_.mailbox_bytes();
  std::size_t at = 0;
  do {
    const auto piece = [&](int r) { return rest_of(blocks[static_cast<std::size_t>(r)].bytes, at, step); };
    const Arena::Round round = arena_.begin(op, 0);
    const std::byte* const mine = bytes_at(in, at);
    for_others(rank(), size(), [&](int r) { copy_ahead(Far::source, arena_.mailbox(rank(), r), mine, piece(rank())); });
    arena_.publish(op, round);
    if (std::byte* const own = bytes_at(blocks[static_cast<std::size_t>(rank())].data, at); own != mine)
      copy_with(stores, own, mine, piece(rank()));
    arena_.await_all_published(op, round, at == 0);
    for_others(rank(), size(), [&](int r) {
      std::byte* const out = bytes_at(blocks[static_cast<std::size_t>(r)].data, at);
      if (stores == Stores::streaming)
        copy_with(stores, out, arena_.mailbox(r, rank()), piece(r));
      else
        copy_ahead(Far::target, out, arena_.mailbox(r, rank()), piece(r));
    });
    arena_.turn_mailboxes();
    at += step;
  } while (at < longest);
}

void HostTier::reduce_scatter_mailboxes(const Op& op, const std::vector<Block>& blocks, void* out,
                                        const Reduction& reduction, std::size_t longest) {
  const std::size_t width = size_of(reduction.in);
  const std::size_t step = arena_.mailbox_bytes() / width;
  std::size_t at = 0;
  do {
    const auto piece = [&](int r) { return rest_of(blocks[static_cast<std::size_t>(r)].count, at, step); };
    const auto data = [&](int r) { return bytes_at(blocks[static_cast<std::size_t>(r)].data, at * width); };
    const Arena::Round round = arena_.begin(op, 0);
    for_others(rank(), size(),
               [&](int r) { copy_ahead(Far::source, arena_.mailbox(rank(), r), data(r), piece(r) * width); });
    arena_.publish(op, round);
    arena_.await_all_published(op, round, at == 0);
    if (piece(rank()) > 0) {
      for_others(rank(), size(), [&](int r) { sources_[static_cast<std::size_t>(r)] = arena_.mailbox(r, rank()); });
      sources_[static_cast<std::size_t>(rank())] = data(rank());
      reduce_into(bytes_at(out, at * size_of(reduction.out)), sources_.data(), size(), piece(rank()), reduction);
    }
    arena_.turn_mailboxes();
    at += step;
  } while (at < longest);
}

void HostTier::all_reduce_mailboxes(const Op& op, const void* in, void* out, std::size_t count,
                                    const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  const std::size_t step = arena_.mailbox_bytes() / width * static_cast<std::size_t>(size());
  for (std::size_t at = 0; at < count; at += step) {
    Chunk chunk{{}, bytes_at(in, at * width), bytes_at(out, at * width), std::min(step, count - at)};
    const auto part = [&](int r) { return part_of(chunk.count, size(), r); };
    chunk.round = arena_.begin(op, 0);
    for_others(rank(), size(), [&](int r) {
      copy_ahead(Far::source, arena_.mailbox(rank(), r), chunk.in + part(r).first * width, part(r).count * width);
    });
    arena_.publish(op, chunk.round);
    arena_.await_all_published(op, chunk.round, at == 0);
    answer(chunk, reduction);
    arena_.signal_reduced(chunk.round);
    for_others(rank(), size(), [&](int r) {
      if (part(r).count > 0) arena_.await(op, r, Arena::Phase::reduced, chunk.round);
      copy_ahead(Far::target, chunk.out + part(r).first * width, arena_.mailbox(rank(), r), part(r).count * width);
    });
  }
}

// This rank's part of the sum, to where the others' parts of it came from.
void HostTier::answer(const Chunk& chunk, const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  const Part own = part_of(chunk.count, size(), rank());
  const int next = (rank() + 1) % size();
  const std::size_t tile = size() == 2 ? own.count : kCopiedBytes / width;
  for (std::size_t done = 0; done < own.count; done += tile) {
    const std::size_t at = (own.first + done) * width;
    const std::size_t n = std::min(tile, own.count - done);
    const auto theirs = [&](int r) { return arena_.mailbox(r, rank()) + done * width; };
    for_others(rank(), size(), [&](int r) { sources_[static_cast<std::size_t>(r)] = theirs(r); });
    sources_[static_cast<std::size_t>(rank())] = chunk.in + at;
    reduce_into_both(chunk.out + at, theirs(next), Stores::cached, sources_.data(), size(), n, reduction);
    for_others(rank(), size(), [&](int r) {
      if (r != next) copy_bytes(theirs(r), theirs(next), n * width);
    });
  }
}

}  // namespace smddp
