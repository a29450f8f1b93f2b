// The control plane: how a rank that waits learns that waiting is in vain.
//
// One silent TCP connection to each peer whose fate matters. A killed process closes it (the kernel sends the FIN), a
// rank that fails sends its reason on it, and abort() from another thread is seen through the same check().
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "op.hpp"
#include "smddp/deadline.hpp"
#include "smddp/errors.hpp"
#include "transport/connect.hpp"
#include "transport/message_log.hpp"
#include "transport/notice.hpp"

struct pollfd;

namespace smddp {

/// How a peer was lost, in words: see loss_text().
struct Loss {
  int rank = 0;
  std::string how;
};

class Control {
 public:
  /// @param job_ranks for messages: see rank_name().
  explicit Control(int rank, std::vector<int> job_ranks = {});

  /// Adds a peer, or another connection in place of the one there was. Before the first operation.
  void add(int peer, Socket socket);

  /// For the peers there are: see Env.
  void set_link_timeout(std::chrono::milliseconds timeout);

  /// Records the first reason why the group is dead and tells all peers. Later calls do nothing. Any thread.
  void raise(ErrorKind kind, const std::string& message);

  /// Throws the recorded reason, if any; reads what peers sent first. Any thread.
  void check();

  /// Reads what peers sent. Any thread.
  void refresh();

  /// check(), and throws a PeerError when a rank is gone that has not done its part of `op`, although it may be another
  /// than the one this rank waits for: nobody can finish without it.
  void check(const Op& op);

  /// A rank that died. As of the last check(). Any thread. @param at_once also one whose connection has just closed.
  std::optional<Loss> gone(bool at_once = false) const;

  /// Peers whose connection has closed without a farewell. Looks at the sockets first. Any thread.
  std::vector<int> dead();

  /// One of the peers, if they are the group's `others` other ranks and all are gone. As of the last check(). Any
  /// thread.
  std::optional<Loss> all_gone(int others) const;

  /// Tells the peers that this rank leaves, with all operations up to number `last` done. @param reason if it is none
  /// that they expect: "ended with ...".
  void leave(std::uint64_t last, const std::string& reason = "");

  /// check(), but looks at the sockets only if the last look is more than a millisecond old at `now`: a system call
  /// costs as much as a small operation. A rank that comes late, which must learn of a dead group, still looks.
  void check_now_and_then(Deadline::Clock::time_point now);

  /// True once a reason is recorded. Any thread.
  bool raised() const { return raised_.load(std::memory_order_acquire); }

  /// True when `rank`'s process ended or left the group. As of the last check().
  bool closed(int rank) const;

  /// A rank whose connection is closed. As of the last check().
  std::optional<Loss> lost() const;

  /// How the connection to `rank` ended, here or, with `error_number`, another one. As of the last check().
  std::string how_lost(int rank, int error_number = 0) const;

  /// The recorded reason; "" if there is none. Any thread.
  std::string reason() const;

  /// The ranks that operation `sequence` has been waiting for longer than a moment. Any thread.
  void set_awaited(std::uint64_t sequence, std::vector<int> ranks);
  Awaited awaited() const;
  /// Whether that operation is still under way. Any thread.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

  /// A message to or from a peer is under way, which another library carries. @return its number. Any thread.
  std::uint64_t issue(PeerMessage own);
  /// A receive from whichever rank sends first, likewise.
  void issue_from_any();
  /// This rank has waited for that message for some time: tells the other, so that it compares what it has issued.
  /// Until stop_awaiting(), whoever misses this rank in an operation learns for whom it waits.
  void await(const PeerMessage& own);
  void stop_awaiting(const PeerMessage& own);

  /// The operation is over: from now on this rank does not answer that it waits.
  void moved_on() {
    if (waiting_.load(std::memory_order_relaxed)) forget_awaited();
  }

  /// Asks `missing` whom they wait for, and returns those that do not answer (they are elsewhere, or stopped) and those
  /// that the others name. Throws when another rank's explanation arrives meanwhile.
  std::vector<int> blame(const std::vector<int>& missing);

  /// For an operation in which nobody knows whom it waits for: the peers that do not answer that they wait. Throws when
  /// another rank's explanation arrives meanwhile.
  std::vector<int> silent();

  /// Called before a lost peer is reported as such: gives another rank's explanation `patience` to arrive, and throws
  /// it if it does.
  void settle(std::chrono::milliseconds patience = std::chrono::milliseconds(200));

  /// Adds what wakes a poll() on data for news here too.
  void append_to(std::vector<pollfd>& entries) const;

 private:
  struct Peer {
    Socket socket;
    NoticeReader reader;
    bool closed = false;
    Deadline::Clock::time_point closed_at{};
    int error_number = 0;
    std::optional<std::uint64_t> left;  // in good order, having done so many operations
    std::string farewell;               // why, if it said so
    std::optional<Awaited> answer;
    std::string unsent;  // what the socket's buffer had no room for
  };

  void record(ErrorKind kind, const std::string& message);
  void send(Peer& peer, const Notice& notice);
  void flush(Peer& peer);
  void look();
  void read_from(int rank, Peer& peer);
  void take(Peer& peer, const Notice& notice);
  void answer(Peer& peer);
  void close(Peer& peer, int error_number);
  void forget_awaited();
  void take_message(const Notice& note);
  void object(const std::optional<MessageLog::Contradiction>& found);
  void hint(Peer& peer, const Notice& notice);
  Loss loss_of(int rank) const;
  template <class Early>
  std::optional<Loss> missing(bool at_once, Early early) const;
  void ask(const std::vector<int>& some);
  bool all_answered(const std::vector<int>& asked) const;

  std::string name(int rank) const { return rank_name(rank, job_ranks_); }

  const int rank_;
  const std::vector<int> job_ranks_;
  Socket readable_;  // an epoll set of all peers: one system call, however many there are
  mutable std::mutex mutex_;
  std::map<int, Peer> peers_;
  std::atomic<bool> raised_{false};
  std::atomic<bool> waiting_{false};
  bool owing_ = false;  // some peer has something unsent
  std::atomic<Deadline::Clock::time_point> looked_{Deadline::Clock::time_point{}};
  ErrorKind kind_ = ErrorKind::system;
  std::string message_;
  Awaited awaited_;
  MessageLog messages_;
  std::multiset<int> awaited_peers_;  // of messages
};

}  // namespace smddp
