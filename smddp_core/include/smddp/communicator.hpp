// A group of ranks and its collective operations on plain memory. The torch binding is one user, the tests another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smddp/delegated_call.hpp"
#include "smddp/env.hpp"
#include "smddp/errors.hpp"
#include "smddp/peer_message.hpp"
#include "smddp/residual.hpp"
#include "smddp/store.hpp"
#include "smddp/topology.hpp"
#include "smddp/types.hpp"

namespace smddp {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{1'800'000};  ///< Bounds the meeting of the ranks too (with Env::init_timeout).
  std::string name = "default";                  ///< For messages only.
  std::vector<int> job_ranks;                    ///< The job's number of each rank, for messages; empty: the same.
  std::string refusal;          ///< Why this rank cannot take part, if it cannot: all hear of it, instead of waiting.
  std::function<void()> watch;  ///< Called now and then while the ranks meet; what it throws ends that.
  Env env;                      ///< Of it, rank 0's decides on all ranks where Env says so.
};

/// Every operation blocks until this rank's part is done, and must be called by all ranks in the same order.
///
/// Guarantees: results are the same bits on every rank, and do not depend on timing or on the chunk size. Sums run in
/// rank order inside a host; between 4, 8, 16 ... hosts (flat path: ranks) in pairs, ((0 + 1) + (2 + 3)), between other
/// numbers of them in host order. f16 and bf16 are summed in f32 and rounded once.
///
/// Errors (see errors.hpp): TimeoutError names the ranks that are missing; PeerError the rank that went away;
/// MismatchError both operations. After any of them the group is dead: every later call raises the first cause again.
/// UsageError leaves the group usable.
///
/// Threads: operations of one communicator are serialised; abort() may be called from any thread.
class Communicator {
 public:
  /// Meets the other ranks through `store` (used only here) and connects to them.
  Communicator(Store& store, const CommunicatorOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  using Timeout = std::chrono::milliseconds;

  /// Returns when every rank has called it.
  void barrier(Timeout timeout);

  /// Copies `bytes` bytes at `data` from rank `root` to all. `dtype` and `tag` are only compared between ranks.
  void broadcast(void* data, std::size_t bytes, int root, Timeout timeout, DType dtype = DType::bytes,
                 std::uint32_t tag = 0);

  /// out[i] = op over ranks of in[i]; `in` and `out` are the same or disjoint, `count` elements each.
  /// @param residual for error feedback (keeps_residuals()); may differ between ranks, nothing is lost without.
  /// @param root,tag are only compared between ranks: the rank that keeps the result, if not all do; a number for all
  /// else that must be the same.
  void all_reduce(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op, Timeout timeout,
                  Residual* residual = nullptr, int root = -1, std::uint32_t tag = 0);

  /// all_reduce() over the ranks of this one's rail only (Topology::rail()), in place, called by all ranks: for
  /// programs that do the hosts' part themselves, and share a message among the ranks of a host. An average is that of
  /// the rail. @pre topology().has_rails()
  void all_reduce_between_hosts(void* data, std::size_t count, DType dtype, ReduceOp op, Timeout timeout,
                                Residual* residual = nullptr, std::uint32_t tag = 0);

  /// outs[r] (`bytes` bytes each, one a rank) = rank r's `in`. `in` may be outs[rank].
  void all_gather(const void* in, const std::vector<void*>& outs, std::size_t bytes, Timeout timeout,
                  DType dtype = DType::bytes, std::uint32_t tag = 0);

  /// out = op over ranks of ins[this rank]; one `in` of `count` elements a rank. `out` may be ins[rank].
  void reduce_scatter(const std::vector<const void*>& ins, void* out, std::size_t count, DType dtype, ReduceOp op,
                      Timeout timeout, Residual* residual = nullptr);

  /// True if sums of `bytes` bytes of float32 are rounded between hosts, and error feedback is on: a caller that sums
  /// one buffer again and again should keep a Residual for it.
  bool keeps_residuals(std::size_t bytes) const;

  /// Wakes whatever waits, here and on the other ranks, with an AbortedError. The group is dead afterwards.
  void abort(const std::string& reason);

  /// Differs from that of every other group; the same on all ranks.
  const std::string& id() const;

  /// True once an error or abort has ended the group. Any thread.
  bool failed() const;

  /// Throws what ended the group, if anything has, here or as reported by a peer. Any thread.
  void check() const;

  /// Counters, and the last operations, as JSON: see docs/smddp.md. Any thread, also while an operation runs.
  std::string stats() const;
  std::string flight_recorder() const;

  /// Before an operation, by the thread that calls it: whether the program waits for it. Then its time is exposed.
  void set_blocking(bool blocking);

  /// For programs that leave some of their group's operations to another library, which compares nothing. Before each
  /// that all ranks take part in, by all of them and in one order with the operations here: returns when all ranks have
  /// come to it, and what they say of it belongs together. @param record of the call, see began().
  void agree(const DelegatedCall& call, std::uint64_t record, Timeout timeout);

  /// For the counters and the flight recorder, which know nothing of these operations else. @param peer the other rank
  /// of one between two, -1 if any. @return what ended() asks for. Any thread.
  std::uint64_t began(const std::string& name, int peer, std::uint64_t bytes);
  void ended(std::uint64_t id, bool failed);
  /// Somebody was blocked this long by an operation of that name.
  void add_exposed(const std::string& name, std::chrono::nanoseconds time);

  /// A message between two ranks is under way, which the other library carries. Where the peer's is found to be of
  /// another type or size, the group ends with a MismatchError. @return the message's number, for awaits(). Any thread.
  std::uint64_t issued(const PeerMessage& message);
  /// The same for a receive from whichever rank sends first: receives of this rank are no longer compared.
  void issued_from_any();
  /// This rank has waited for some time for a message that it issued: tells its peer, which compares. Any thread.
  void awaits(const PeerMessage& message);
  /// It does no longer.
  void stops_awaiting(const PeerMessage& message);

  /// Somebody was blocked this long until an operation of this kind was done: counted as exposed. Any thread.
  void add_exposed(OpKind kind, std::chrono::nanoseconds time);

  /// Appends stats() to Env::stats_file, the first time it is called. The destructor does it at the latest.
  void write_stats();

  /// check(), and throws a PeerError when a rank is gone. For the other library's operations, `title` among them: they
  /// may have failed for that reason. Any thread.
  void check_peers(const std::string& title) const;

  /// check(), and throws a PeerError when a rank died, although `title`, the other library's, may wait for others. Any
  /// thread. @param at_once also for one whose connection has just closed: it may have done its part.
  void check_alive(const std::string& title, bool at_once = false) const;

  /// Ranks whose processes have ended, or that are cut off, as far as this rank knows. Throws nothing. Any thread.
  std::vector<int> dead() const;

  /// Throws a PeerError when every other rank is gone, also in good order: for one that waits for any of them. Any
  /// thread.
  void check_others(const std::string& title) const;

  /// While this rank waits in an operation of the other library's that all ranks take part in, it answers others that
  /// it does. Any thread.
  void set_waiting_elsewhere(bool waiting);
  /// For such an operation that took too long: the ranks that do not answer so, as far as this one is connected to
  /// them. Takes a moment. @throws what ended the group, if another rank knows more. Not while this thread is in an
  /// operation of ours.
  std::vector<int> silent();

  /// The ranks that the operation of ours under way has been waiting for, with their hosts; "" for none. Any thread.
  std::string waiting_for() const;

  /// Ends the group with an error of the other library's operations, as with one of ours. @throws what ended it first.
  /// Not while this thread is in an operation of ours.
  [[noreturn]] void fail(const Error& cause);

  /// Tells the other ranks that this one calls no more operations. A connection that closes without this is taken for a
  /// death.
  /// @param reason what the errors of ranks that miss this one say of its end: "its process ended with ...". May be "".
  void leave(const std::string& reason = "");

  /// Number of the last operation started.
  std::uint64_t sequence() const;

  const Topology& topology() const;

  /// What the group agreed on, and this rank's own.
  const Env& env() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smddp
