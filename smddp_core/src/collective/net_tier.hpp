// Collectives between hosts by direct exchange, after Herring (Thangakrishnan et al., SC'20): a message is cut into one
// shard a rank, shard i goes straight to rank i, which reduces it and sends the result straight back. One
// hop each way and the same number of bytes for everybody, without a ring's chain of n-1 steps.
//
// Steps (one-way trips) and bytes sent by each of n ranks, for a message of B bytes:
//   all_reduce, small   1 step    (n-1) B                     everybody sums everything
//     relayed           log2 n    (n-1) B                     in log2 n messages instead of n-1
//     doubled           log2 n    log2 n x B                  the same with partial sums, for powers of two
//   all_reduce          2 steps   2(n-1)/n B
//     halved            2 log2 n  2(n-1)/n B                in log2 n messages each way, for powers of two
//     between them, whichever turns out to be the fastest: it depends on the links
//   reduce_scatter      1 step    (n-1)/n B
//     small, halved     log2 n    (n-1)/n B                 for powers of two
//   all_gather          1 step    (n-1)/n B
//     small, relayed    log2 n    (n-1)/n B
//   broadcast           1 step    (n-1) B at the root if B is small, else 2 steps, (n-1)/n B or (for the root) twice
//   that
//     small, relayed    log2 n    log2 n x B at the root
// Sums run in pairs if the number of ranks is a power of two, else in rank order (reduce_in_pairs()): whichever way an
// operation goes, the bits are the same.
// Every operation also sends a header of 32 bytes to each peer, in front of the first data.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "collective/reduce_pipe.hpp"
#include "collective/tier.hpp"
#include "collective/trial.hpp"
#include "transport/wire.hpp"

namespace smddp {

class NetTier final : public Tier {
 public:
  /// @param members ranks of the group in this tier, in tier order. @param rank this rank's index in `members`.
  /// @param wire connected to all members; outlives the tier.
  NetTier(Wire& wire, std::vector<int> members, int rank, const NetSettings& settings);

  int rank() const override { return me_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void barrier(const Op& op) override;
  void broadcast(const Op& op, void* data, std::size_t bytes, int root) override;
  void all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks) override;
  void reduce_scatter(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction) override;
  void all_reduce(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction) override;

  // The same operations in the hands of a caller that works on parts of the message meanwhile (hierarchy.hpp). Each
  // posts the headers and ends with finish().

  /// Posts a gather and puts this rank's own block in place. arrived[r] counts the bytes of blocks[r] that are there,
  /// from the start. All must stay.
  void start_all_gather(const Op& op, const void* in, const std::vector<MutableBlock>& blocks,
                        std::vector<std::size_t>& arrived);

  /// Posts a broadcast. `arrived` counts the bytes that are in place, from the start (all of them at the root).
  void start_broadcast(const Op& op, void* data, std::size_t bytes, int root, std::size_t& arrived);

  /// @param total elements of all blocks this rank will push.
  ReducePipe start_reduction(const Op& op, const Reduction& reduction, std::size_t total);

  /// Waits until `arrived` is at least `bytes`.
  void wait_for(const Op& op, const std::size_t& arrived, std::size_t bytes);

  /// Waits for everything.
  void finish(const Op& op) { wire_.run(op); }

  const NetSettings& settings() const { return settings_; }

 private:
  int global(int r) const { return members_[static_cast<std::size_t>(r)]; }
  /// The k-th peer after this rank, so that not everyone starts with the same one. k in 1 .. size-1.
  int after(int k) const { return (me_ + k) % size(); }
  /// What one step sends more than two. Zero for two ranks.
  std::size_t extra_bytes(std::size_t bytes) const;
  /// Without doubt.
  bool in_one_step(std::size_t bytes) const;
  /// Null where there is no doubt. The same on all ranks.
  Trial* trial_of(std::size_t bytes, bool halving);
  void announce(const Op& op);
  void hear(const Op& op, OpHeader& theirs, int r);
  void post_headers(const Op& op);
  void hold_peers();
  void stop_if_late(const Op& op, int r, std::size_t posted) const;
  void send_pieces(const Op& op, int r, const void* data, std::size_t bytes);
  void recv_pieces(const Op& op, int r, void* data, std::size_t bytes, std::size_t& arrived);
  /// Everybody's message of `bytes` into `incoming`, that of rank r at r x bytes but for this rank's own.
  void swap_all(const Op& op, const void* in, std::byte* incoming, std::size_t bytes);
  /// The reduction goes in a 16-bit format.
  bool coded(const Op& op, const Reduction& reduction) const;

  // By way of others (net_relay.cpp): where relays().

  bool relays() const { return settings_.relay && size() > 2; }
  bool power_of_two() const { return (size() & (size() - 1)) == 0; }
  /// A step of relay(): `blocks` ranks' messages from that of rank `first` on go to `to`, as many come from `from`.
  struct Hop {
    int to;
    int from;
    int first;
    int blocks;
  };
  Hop hop(int distance) const;
  /// Whether headers go in front, or were compared before in the same operation.
  enum class Headers { swapped, known };
  /// Fills blocks[r] with rank r's blocks[r]. Sizes as in all_gather().
  void relay(const Op& op, const std::vector<MutableBlock>& blocks, Headers headers);
  void relay_broadcast(const Op& op, void* data, std::size_t bytes, int root);
  /// Sends this rank's header to `to` and compares that of `from`.
  void swap_headers(const Op& op, int to, int from);
  /// Sums can be passed on.
  bool can_double(const Reduction& reduction) const;
  static Reduction partial_of(const Reduction& reduction);
  void add_partners(void* to, int partner, const void* mine, const void* theirs, std::size_t count,
                    const Reduction& reduction) const;
  /// All-reduce by recursive doubling.
  void double_up(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  /// Reduce-scatter by recursive halving.
  void halve(const Op& op, const std::vector<Block>& blocks, void* out, const Reduction& reduction);
  /// All-reduce by halve() and relay().
  void halve_and_gather(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);

  void one_shot(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void two_steps(const Op& op, const void* in, void* out, std::size_t count, const Reduction& reduction);
  void try_all_reduce(Trial& trial, const Op& op, const void* in, void* out, std::size_t count,
                      const Reduction& reduction);
  std::size_t broadcast_step(std::size_t bytes) const;
  void broadcast_block(std::byte* data, std::size_t bytes, int root, std::size_t& arrived);

  Wire& wire_;
  const std::vector<int> members_;
  const int me_;
  const NetSettings settings_;
  Scratch incoming_;
  PipeMemory memory_;
  std::vector<OpHeader> headers_;
  OpHeader announced_;     // this rank's, while it is sent
  std::uint8_t plan_ = 0;  // what it says of the next one of this kind, or what was heard: a way of a trial, plus one
  std::map<unsigned, Trial> trials_[2];  // by powers of two of the size: without halve_and_gather() and with it
  std::vector<const void*> sources_;
};

}  // namespace smddp
