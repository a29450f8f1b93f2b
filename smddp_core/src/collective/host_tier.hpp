// Collectives of the ranks of one host over shared memory.
//
// Steps (waits for other ranks) and bytes copied into or out of shared memory by each of n ranks, for a message of B
// bytes:
//   all_reduce, small   1 step    B in, (n-1)B read            everybody sums everything
//   all_reduce, large   2 steps   B in, 2(n-1)/n B read        chunks: sum own part, publish it, copy the others' sums
//   reduce_scatter      1 step    (n-1)/n B in, (n-1)/n B read
//   all_gather          1 step    B/n in, (n-1)/n B read
//   broadcast           1 step    B in at the root, B read elsewhere
// What is reduced goes in chunks of about an L2 cache, what is only moved in smaller ones.
//
// The same steps, but for the small all-reduce and the broadcast, go through mailboxes of each two ranks instead
// (host_mailbox.cpp) where that turns out to be faster.
//
// Where ranks can read one another's memory, messages of a middle size are copied once, without shared memory
// (host_direct.cpp) where that turns out to be faster: it depends on the processor, on which cores the ranks run, and
// on the size, see Trial.
//   all_reduce          3 steps   2(n-1)/n B read
//   reduce_scatter      2 steps   (n-1)/n B read
//   all_gather          2 steps   (n-1)/n B read
//   broadcast           2 steps   B read but at the root
#pragma once

#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "collective/tier.hpp"
#include "collective/trial.hpp"
#include "smddp/env.hpp"
#include "transport/arena.hpp"

namespace smddp {

class HostTier final : public Tier {
 public:
  /// @param one_shot_bytes see Env::one_shot_bytes.
  HostTier(Arena arena, std::size_t one_shot_bytes);

  /// The first thing all ranks of the host do together: they learn how to wait for one another, how to write what
  /// others read and whether they may read one another's memory. The host's first rank decides the latter two, by
  /// `env.shm_stores` or, where that leaves it open, by what each way takes (a few milliseconds), and `env.shm_direct`.
  void tune(const Op& op, const Env& env);

  /// "cached stores (a chunk cached 43 us, streaming 88 us), chunks of 1024 KiB, ..."; times on the host's first rank.
  std::string description() const;

  int rank() const override { return arena_.local_rank(); }
  int size() const override { return arena_.size(); }
  void barrier(const Op& op) override;
  void broadcast(const Op& op, void* data, std::size_t bytes, int root) override;
  void all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) override;
  void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) override;
  /// `reduction.in` and `.out` must be one type here.
  void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) override;

 private:
  /// Which memory data goes through.
  enum class Route {
    slots,      ///< Of each rank, for all others.
    mailboxes,  ///< Of each two ranks.
    direct,     ///< None: ranks read one another's.
  };

  /// A chunk of an all-reduce.
  struct Chunk {
    Arena::Round round;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::size_t count = 0;
  };

  std::size_t moved_at_once() const;
  std::size_t broadcast_step(std::size_t bytes) const;
  void broadcast_shared(const Op& op, void* data, std::size_t bytes, int root);
  void one_shot(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void copy_in(const Op& op, Chunk& chunk, std::size_t width);
  void reduce_own(const Op& op, const Chunk& chunk, const Reduction& reduction, bool first);
  void copy_out(const Op& op, const Chunk& chunk, std::size_t width);
  void all_gather_shared(const Op& op, const void* in, const std::vector<MutableBlock>& blocks, std::size_t longest);
  void reduce_scatter_shared(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction,
                             std::size_t longest);
  void all_reduce_shared(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void write(void* to, const void* from, std::size_t bytes) { copy_with(way_.stores, to, from, bytes); }

  /// How an operation goes.
  struct Way {
    Stores stores = Stores::cached;  ///< Of slots.
    Route route = Route::slots;
  };
  /// An operation that may go several ways.
  struct Turn {
    Trial* trial = nullptr;  ///< Null where there is no choice.
    std::size_t bytes = 0;
  };
  struct Ways {
    std::array<Way, Trial::kMostWays> list;
    int count = 0;
    void add(const Way& way) { list[static_cast<std::size_t>(count++)] = way; }
  };
  /// In which ways a message of `bytes` bytes of all ranks together may go.
  Ways ways_of(OpKind kind, std::size_t bytes) const;
  /// Decides how an operation goes (way_). @param bytes of a message of all ranks together. @param root of a broadcast.
  Turn begin_turn(OpKind kind, std::size_t bytes, int root = -1);
  void end_turn(const Turn& turn);
  /// Each false, with nothing written, where the memory of some rank cannot be read.
  bool broadcast_direct(const Op& op, void* data, std::size_t bytes, int root);
  bool all_gather_direct(const Op& op, const void* in, const std::vector<MutableBlock>& blocks);
  bool reduce_scatter_direct(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction);
  bool all_reduce_direct(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);

  void all_gather_mailboxes(const Op& op, const void* in, const std::vector<MutableBlock>& blocks, std::size_t longest);
  void reduce_scatter_mailboxes(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction,
                                std::size_t longest);
  void all_reduce_mailboxes(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void answer(const Chunk& chunk, const Reduction& reduction);

  static Stores stores_for_result(std::size_t bytes);

  struct Times {
    double one = 0;  ///< Microseconds.
    double other = 0;
    bool apart = false;  ///< Measured with each rank on a core of its own, where there are enough.
  };
  Times compare(const Op& op, const std::function<double()>& one, const std::function<double()>& other);
  void choose_stores(const Op& op, const std::string& wanted, Scratch& memory);
  void choose_direct(const Op& op, When wanted);
  void choose_mailboxes(When wanted);
  double time_of_chunk(const Op& op, Stores stores, Scratch& memory);

  Arena arena_;
  std::size_t one_shot_bytes_;
  Stores stores_ = Stores::cached;  // where no trial says which
  bool try_stores_ = false;
  bool direct_ = false;
  bool direct_always_ = false;
  bool tries_ = false;  // each rank has a core, or what operations find out is who runs when
  bool mailboxes_ = false;
  bool mailboxes_always_ = false;
  Way way_;  // of the operation under way
  // By who plans, and powers of two of the size.
  std::map<std::tuple<OpKind, int, unsigned>, Trial> trials_;
  std::string probed_;
  std::string why_direct_;
  std::string why_mailboxes_;
  std::vector<const void*> sources_;
  Scratch fetched_;
};

}  // namespace smddp
