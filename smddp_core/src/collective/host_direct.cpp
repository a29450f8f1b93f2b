// Collectives of a host whose ranks read one another's memory: one copy where shared memory takes two.
#include <algorithm>
#include <exception>

#include "collective/host_tier.hpp"
#include "memory.hpp"

namespace smddp {
namespace {

constexpr std::size_t operator""_KiB(unsigned long long n) { return std::size_t{n} << 10U; }

// Fetched at a time for a sum, from all others together: stays in the L2 cache beside the results.
constexpr std::size_t kFetched = 256_KiB;

/// This rank's memory, lent to the others of its host for one operation, and theirs to it.
class Loan {
 public:
  /// @param addresses as many as the others', null for none.
  /// @param looked whether each rank first looks if they can be read, see Arena::lend(): for sums, which in place
  /// overwrite what another way would begin with.
  Loan(Arena& arena, const Op& op, const std::vector<const void*>& addresses, bool looked)
      : guard_{arena},
        arena_(arena),
        op_(op),
        addresses_(addresses.size()),
        looked_(looked),
        round_(arena.lend(op, addresses, looked)) {}

  /// Waits until all have lent theirs.
  void meet() {
    arena_.await_all_published(op_, round_, true);
    good_ = !looked_ || arena_.lent_by_all(round_, addresses_);
  }

  /// False: somebody lends what nobody can read. Known to all where they have looked and met, else where this rank
  /// could not fetch, or has waited for one that could not.
  bool good() const { return good_; }

  void fetch(int from, std::size_t index, std::size_t offset, void* to, std::size_t bytes) {
    if (!good_) return;
    good_ = arena_.fetch(op_, from, round_, index, offset, to, bytes);
    if (!good_ && looked_) arena_.throw_unreadable(op_, from, EFAULT);
  }

  /// Tells that this rank needs nothing any more of what the others lent first, and whether it got it.
  void give_back() {
    if (good_)
      arena_.signal_reduced(round_);
    else
      arena_.signal_unread(round_);
  }
  void await_from(int rank) {
    arena_.await(op_, rank, Arena::Phase::reduced, round_);
    good_ = good_ && !arena_.unread_by(rank, round_);
  }
  void await_all() {
    for (int r = 0; r < arena_.size(); ++r)
      if (r != arena_.local_rank()) await_from(r);
  }

 private:
  /// An exception may free what is lent, while somebody reads it.
  struct Guard {
    Arena& arena;
    int before = std::uncaught_exceptions();
    ~Guard() {
      if (std::uncaught_exceptions() > before) arena.withdraw();
    }
  };

  Guard guard_;  // first: it is also for what the constructor throws
  Arena& arena_;
  const Op& op_;
  std::size_t addresses_;
  bool looked_;
  Arena::Round round_;
  bool good_ = true;
};

/// A part of this rank's input, its place in what the others lent, and where the sum goes.
struct Share {
  std::size_t index;   ///< Which of the addresses.
  std::size_t offset;  ///< In bytes.
  const void* mine;
  void* out;
  std::size_t count;
};

void reduce_fetched(Loan& loan, int rank, int size, const Share& share, const Reduction& reduction,
                    std::vector<const void*>& sources, Scratch& memory) {
  const std::size_t width = size_of(reduction.in);
  const auto others = static_cast<std::size_t>(size - 1);
  const std::size_t tile = std::max<std::size_t>(1, kFetched / width / std::max<std::size_t>(1, others));
  std::byte* fetched = memory.at_least(tile * width * others);
  for (std::size_t at = 0; at < share.count; at += tile) {
    const std::size_t n = std::min(tile, share.count - at);
    std::byte* to = fetched;
    for_others(rank, size, [&](int r) {
      loan.fetch(r, share.index, share.offset + at * width, to, n * width);
      sources[static_cast<std::size_t>(r)] = to;
      to += tile * width;
    });
    sources[static_cast<std::size_t>(rank)] = bytes_at(share.mine, at * width);
    reduce_into(bytes_at(share.out, at * size_of(reduction.out)), sources.data(), size, n, reduction);
  }
}

}  // namespace

// Who cannot read the root's memory is in good company: none of them can.
bool HostTier::broadcast_direct(const Op& op, void* data, std::size_t bytes, int root) {
  Loan loan(arena_, op, {rank() == root ? data : nullptr}, false);
  loan.meet();
  if (rank() != root) loan.fetch(root, 0, 0, data, bytes);
  loan.give_back();
  if (rank() == root) loan.await_all();
  return loan.good();
}

bool HostTier::all_gather_direct(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) {
  const MutableBlock& mine = blocks[static_cast<std::size_t>(rank())];
  Loan loan(arena_, op, {in}, false);
  // While what was published is on its way. Not past the caches: 256 KiB of its own 15 us so, 22 that way.
  copy_bytes(mine.data, in, mine.bytes);
  loan.meet();
  for_others(rank(), size(), [&](int r) {
    const MutableBlock& theirs = blocks[static_cast<std::size_t>(r)];
    loan.fetch(r, 0, 0, theirs.data, theirs.bytes);
  });
  loan.give_back();
  loan.await_all();
  return loan.good();
}

bool HostTier::reduce_scatter_direct(const Op& op, const std::vector<Block>& blocks, void* out,
                                     const Reduction& reduction) {
  std::vector<const void*> addresses;
  for (const Block& block : blocks) addresses.push_back(block.data);
  const auto me = static_cast<std::size_t>(rank());
  Loan loan(arena_, op, addresses, true);
  loan.meet();
  if (!loan.good()) return false;
  reduce_fetched(loan, rank(), size(), {me, 0, blocks[me].data, out, blocks[me].count}, reduction, sources_, fetched_);
  loan.give_back();
  loan.await_all();
  return true;
}

// In place, a rank's sum overwrites only its own part of the input, which nobody else reads; the others' parts are
// overwritten by sums, which are there only when their ranks have read all input.
bool HostTier::all_reduce_direct(const Op& op, const void* in, void* out, std::size_t count,
                                 const Reduction& reduction) {
  const std::size_t width = size_of(reduction.in);
  Loan loan(arena_, op, {in, out}, true);
  loan.meet();
  if (!loan.good()) return false;
  const Part own = part_of(count, size(), rank());
  const std::size_t first = own.first * width;
  reduce_fetched(loan, rank(), size(), {0, first, bytes_at(in, first), bytes_at(out, first), own.count}, reduction,
                 sources_, fetched_);
  loan.give_back();
  for_others(rank(), size(), [&](int r) {
    const Part part = part_of(count, size(), r);
    loan.await_from(r);
    loan.fetch(r, 1, part.first * width, bytes_at(out, part.first * width), part.count * width);
  });
  // Until here the others read the sums.
  barrier(op);
  return true;
}

}  // namespace smddp
