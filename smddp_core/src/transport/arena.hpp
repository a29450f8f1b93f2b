// Memory shared by the ranks of one host, and the counters they wait on.
//
// The segment holds, for each rank, a lane of counters and kSlots data slots. Work proceeds in rounds, numbered alike
// on all ranks:
//
//     round = begin()      my slot of this round is free: every rank has published the round that used the other slot's
//     successor write my slot        other ranks do not look yet publish(round)       they may now await(r, published)
//     I may read r's slot
//     ...                  optionally a second write, announced by signal_reduced() and awaited in the same way
//
// Slot k % kSlots is free once every rank has published round k - kSlots + 1, because a rank publishes a round only
// after it has finished reading the rounds before. So nobody waits for slow readers until they are a whole ring behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "op.hpp"
#include "transport/connect.hpp"
#include "transport/control.hpp"

namespace smddp {

class Arena {
 public:
  static constexpr std::uint64_t kSlots = 2;

  /// What a rank has done in a round.
  enum class Phase { published, reduced };

  /// Describes the segment; equal on all ranks of the host.
  struct Layout {
    int ranks = 1;               ///< Ranks of the group on this host.
    std::size_t slot_bytes = 0;  ///< Size of a slot; rounded up to whole pages.
    Nonce nonce{};               ///< Must be found in a segment that is opened.
  };

  /// Makes a segment under a new random name, with all its memory reserved.
  /// @throws Error saying how much /dev/shm has and what to do, when it is too small.
  static Arena create(const Layout& layout);

  /// Maps the segment `name`. @throws Error when it is not there or not this group's (ranks that do not share
  /// /dev/shm).
  static Arena open(const std::string& name, const Layout& layout);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;
  ~Arena();

  const std::string& name() const { return name_; }

  /// Removes a name; the memory lives on in those who mapped it, and is freed with the last of them.
  static void unlink(const std::string& name);

  /// Says who this process is, before any round. @param members the host's ranks in the group, ascending; @param
  /// control outlives the arena.
  void join(int local_rank, std::vector<int> members, Control& control);

  /// @param hook is called while this rank waits for another, outside of any lock: it moves what else is under way (the
  /// wire) and says whether there is more, so that sleeps are short. What it throws leaves await().
  void while_waiting(std::function<bool(const Op&)> hook) { hook_ = std::move(hook); }

  int local_rank() const { return me_; }
  int size() const { return layout_.ranks; }
  std::size_t slot_bytes() const { return layout_.slot_bytes; }

  /// Starts the next round; returns its number once this rank's slot is free.
  std::uint64_t begin(const Op& op);

  /// The slot of `local_rank` in `round`.
  std::byte* slot(int local_rank, std::uint64_t round);

  /// Announces this rank's slot and operation of `round`.
  void publish(const Op& op, std::uint64_t round);

  /// Announces the second write of `round`.
  void signal_reduced(std::uint64_t round);

  /// Waits until `local_rank` has reached `phase` of `round`: some spinning, then yielding, then sleeping on a futex.
  /// @throws TimeoutError naming every rank that is not there, PeerError, or what Control::check() throws.
  void await(const Op& op, int local_rank, Phase phase, std::uint64_t round);

  /// Waits for all ranks' `published`; then compares their announced operations with `op` if `verify`.
  void await_all_published(const Op& op, std::uint64_t round, bool verify);

 private:
  struct Lane;
  struct Header;

  Arena(int fd, std::string name, const Layout& layout);
  Lane& lane(int local_rank) const;
  void signal(std::atomic<std::uint64_t>& counter, std::uint64_t value);
  void sleep_until(const Op& op, int local_rank, Phase phase, std::uint64_t round);
  std::vector<int> behind(Phase phase, std::uint64_t round) const;

  Layout layout_;
  std::string name_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t slots_offset_ = 0;
  int me_ = 0;
  int spins_ = 0;
  std::vector<int> members_;
  Control* control_ = nullptr;
  std::uint64_t round_ = 0;
  std::function<bool(const Op&)> hook_;
};

}  // namespace smddp
