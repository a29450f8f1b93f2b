// Memory shared by the ranks of one host, and the counters they wait on.
//
// The segment holds, for each rank, a lane of counters and a ring of kUnits units of memory. Work proceeds in rounds,
// numbered alike on all ranks; each takes as many units as its data needs, at the same place of every rank's ring:
//
//     round = begin(bytes)   my slot of this round is free
//     write my slot          other ranks do not look yet
//     publish(round)         they may now await(r, published)
//     I may read r's slot
//     ...                    optionally a second write, announced by signal_reduced() and awaited in the same way
//
// A rank publishes a round only after it has finished reading the rounds before. So a slot is free once every rank has
// published a later round, and nobody waits for slow readers until they are most of a ring behind. Small rounds move
// through the whole ring too: a line that is written anew has left the reader's cache by then, which is three times
// faster at 64 KiB than writing to one place.
//
// Beside the rings, every two ranks have two mailboxes, one for each direction, that hold the same lines of memory for
// ever. Who read a mailbox last is the next to write it: its lines are in that rank's cache then, and are fetched from
// another core once for each message instead of twice. A round uses mailboxes in either of two ways:
//
//     write mailbox(me, r); publish; read mailbox(r, me)        data goes one way: turn_mailboxes() before the next
//     and then write mailbox(r, me); signal_reduced; read mailbox(me, r)               an answer comes back
//
// Where ranks can read one another's memory (peer_memory.hpp), a round may carry addresses instead of data:
//
//     round = lend(addresses)            my memory may be read
//     await_all_published, lent_by_all   so may everyone's
//     fetch(r, ...)                      a copy out of r's memory
//     signal_reduced(round)              I am done with theirs; when all are, mine is my own again
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernel/copy.hpp"
#include "op.hpp"
#include "transport/connect.hpp"
#include "transport/control.hpp"
#include "transport/segment.hpp"

namespace smddp {

class Arena {
 public:
  /// What a rank has done in a round.
  enum class Phase { published, reduced };

  /// A step of all ranks.
  struct Round {
    std::uint64_t number = 0;  ///< From 1.
    std::uint32_t unit = 0;    ///< Where its slots begin in the rings.
    int spins = 0;             ///< How long a wait for it spins.
  };

  /// What ranks tell one another beside what operation they begin.
  struct Remark {
    std::chrono::nanoseconds started{};  ///< When they began, by the host's steady clock.
    int plan = 0;                        ///< See Trial.
  };

  /// What the group knows about the segment before there is one.
  struct Layout {
    int ranks = 1;                ///< Ranks of the group on this host.
    std::size_t chunk_bytes = 0;  ///< Most that a round can take; 0: the creator chooses by its L2 cache.
    Nonce nonce{};                ///< Must be found in a segment that is opened.
    int host = 0;                 ///< The host's number among the group's.
  };

  /// Makes a segment. @throws Error saying what there is and what to do, when there is no memory for it.
  static Arena create(const Layout& layout);

  /// Maps the segment at `address`. @throws Error when it is not there or not this group's.
  static Arena open(const std::string& address, const Layout& layout, const Deadline& deadline);

  const std::string& address() const { return segment_.address(); }

  /// Takes the address away; the memory lives on in those who mapped it, and is freed with the last of them.
  void hide() { segment_.hide(); }

  /// Says who this process is, before any round. @param members the host's ranks in the group, ascending; @param
  /// control outlives the arena.
  void join(int local_rank, std::vector<int> members, Control& control);

  /// First rounds: learns what cores the ranks have, and chooses how to wait.
  /// @param direct whether to find out if the ranks can read one another's memory.
  void meet(const Op& op, bool direct);

  /// @param hook is called while this rank waits for another, outside of any lock: it moves what else is under way (the
  /// wire) and says whether there is more, so that sleeps are short. What it throws leaves await(). Before meet():
  /// ranks with a wire spin less.
  void while_waiting(std::function<bool(const Op&)> hook) { hook_ = std::move(hook); }

  int local_rank() const { return me_; }
  int size() const { return layout_.ranks; }
  std::size_t chunk_bytes() const { return layout_.chunk_bytes; }
  /// Whether waits begin with spinning: every rank has a core.
  bool spinning() const { return own_cores_; }

  /// Whether no two ranks ran on one core when they last signalled.
  bool apart() const;

  /// Whether every rank can read every other's memory.
  bool direct() const { return direct_; }

  /// What the host's first rank decided; equal on all ranks after a round that followed.
  struct Decision {
    Stores stores = Stores::cached;  ///< How slots are written.
    bool direct = false;             ///< Whether ranks may fetch.
    bool measured = false;           ///< Whether more measurements are of no use.
    bool tries = false;              ///< Whether operations try several ways.
  };
  Decision decision() const;
  void decide(const Decision& decision);

  /// Starts the next round, of `bytes` <= chunk_bytes() bytes; returns once this rank's slot is free.
  /// @param of_many whether it is a piece of a message of more than a few. Both are equal on all ranks.
  Round begin(const Op& op, std::size_t bytes, bool of_many = false);

  /// The slot of `local_rank` in `round`.
  std::byte* slot(int local_rank, const Round& round);

  /// Where `from` writes for `to`, both local ranks and different: mailbox_bytes() bytes that nobody else looks at.
  std::byte* mailbox(int from, int to);
  std::size_t mailbox_bytes() const;

  /// What was from one rank for another is for the former from now on. All ranks do so after the same round.
  void turn_mailboxes() { turned_ = !turned_; }

  /// Announces this rank's slot and operation of `round`, and its remark.
  void publish(const Op& op, const Round& round);

  /// Goes with all that this rank publishes from now on.
  /// @param planner the rank whose plan counts.
  void remark(const Remark& remark, int planner) {
    remark_ = remark;
    planner_ = planner;
  }
  /// What was remarked in the last round that was verified: when the last rank began, and the planner's plan.
  const Remark& heard() const { return heard_; }

  /// Begins and publishes a round in which the others may read this rank's memory at `addresses`, as many as theirs;
  /// null for none. They are done with it when they have signalled `reduced`; see withdraw().
  /// @param looked whether this rank first looks if the first byte of each can be read, as that of devices and of
  /// secret memory cannot, and does not lend what is not. The others wait for that, and its system calls take locks
  /// that theirs take (broadcast of 64 KiB, 2 ranks: 7.4 us instead of 6.3).
  Round lend(const Op& op, const std::vector<const void*>& addresses, bool looked);

  /// After all have published `round`: whether each of them lends all of the `addresses` addresses.
  bool lent_by_all(const Round& round, std::size_t addresses);

  /// Copies `bytes` bytes to `to`, from `offset` behind the `index`-th address that `local_rank` lent in `round`.
  /// @returns false where not all of them can be read.
  /// @throws PeerError, or what Control::check() throws, when the memory is no longer there.
  bool fetch(const Op& op, int local_rank, const Round& round, std::size_t index, std::size_t offset, void* to,
             std::size_t bytes);

  /// What fetch() could not read, where nobody can do without.
  [[noreturn]] void throw_unreadable(const Op& op, int local_rank, int error_number);

  /// This rank leaves an operation while its memory is lent: whoever fetches from it fails, from now on.
  void withdraw();

  /// Announces the second write of `round`.
  void signal_reduced(const Round& round);

  /// The same, and that this rank could not fetch what it should.
  void signal_unread(const Round& round);
  /// After `local_rank` has reached `reduced` of `round`: whether it signalled that.
  bool unread_by(int local_rank, const Round& round) const;

  /// Waits until `local_rank` has reached `phase` of `round`: some spinning, then yielding, then sleeping on a futex.
  /// Where every rank has a core, one that finds the awaited rank on its own moves to another.
  /// @throws TimeoutError naming every rank that is not there, PeerError, or what Control::check() throws.
  void await(const Op& op, int local_rank, Phase phase, const Round& round) {
    await_number(op, local_rank, phase, round.number, round.spins);
  }

  /// Waits for all ranks' `published`; then, if `verify`, compares their announced operations with `op` and
  /// hears their remarks.
  void await_all_published(const Op& op, const Round& round, bool verify);

 private:
  static constexpr std::uint32_t kUnits = 32;
  static constexpr std::uint32_t kChunks = 4;  // what a ring holds
  // Rounds of more units than this stay before kLargeEnd: two chunks that follow one another there are still in the
  // cache when their turn comes again, four are not (128 MiB: 28 and 31 ms with 4 ranks).
  static constexpr std::uint32_t kSmallUnits = 2;
  static constexpr std::uint32_t kLargeEnd = 16;
  // Likewise small rounds that are one of many of a message (2 ranks, broadcast of 16 MiB: 494 us, 577 through the
  // whole ring).
  static constexpr std::uint32_t kManyEnd = 8;

  struct Lane;
  struct Header;

  Arena(Segment segment, const Layout& layout);
  static std::size_t bytes_for(const Layout& layout);
  static std::size_t rings_offset(int ranks);
  std::size_t mailboxes_offset() const;
  Header& header() const;
  Lane& lane(int local_rank) const;
  void signal(std::atomic<std::uint64_t>& counter, std::uint64_t value);
  void find_abilities(const Op& op, bool direct);
  int spins_of_a_wait() const;
  void await_number(const Op& op, int local_rank, Phase phase, std::uint64_t number, int spins);
  void step_aside(int local_rank);
  void sleep_until(const Op& op, int local_rank, Phase phase, std::uint64_t number);
  std::vector<int> behind(Phase phase, std::uint64_t number) const;

  Segment segment_;
  Layout layout_;
  std::size_t unit_bytes_ = 0;
  int me_ = 0;
  bool own_cores_ = false;
  bool far_fences_ = false;
  bool direct_ = false;
  std::unique_ptr<std::uint64_t> proof_;  // what others find at MemoryProof::address
  int spins_ = 0;
  std::vector<int> members_;
  Control* control_ = nullptr;
  std::function<bool(const Op&)> hook_;
  Remark remark_;
  Remark heard_;
  int planner_ = 0;

  std::uint64_t round_ = 0;
  std::uint32_t cursor_ = 0;                      // unit where the next round begins
  bool turned_ = false;                           // see turn_mailboxes()
  std::uint32_t last_begin_ = 0;                  // unit where the last one began
  std::array<std::uint64_t, kUnits> last_use_{};  // round that used each unit last
  std::uint64_t settled_ = 0;                     // a round that all ranks are known to have published
};

}  // namespace smddp
