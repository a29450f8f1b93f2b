// The control plane: how a rank that waits learns that waiting is in vain.
//
// One silent TCP connection to each peer whose fate matters. A killed process closes it (the kernel sends the FIN), a
// rank that fails sends its reason on it, and abort() from another thread is seen through the same check().
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "smddp/deadline.hpp"
#include "smddp/errors.hpp"
#include "transport/connect.hpp"

struct pollfd;

namespace smddp {

/// Whom an operation waits for.
struct Awaited {
  std::uint64_t sequence = 0;
  std::vector<int> ranks;
};

class Control {
 public:
  Control(int rank, Peers peers);

  /// Records the first reason why the group is dead and tells all peers. Later calls do nothing. Any thread.
  void raise(ErrorKind kind, const std::string& message);

  /// Throws the recorded reason, if any; reads what peers sent first. Any thread.
  void check();

  /// check(), but looks at the sockets only if the last look is more than a millisecond old at `now`: one system call a
  /// peer costs as much as a small operation. A rank that comes late, which must learn of a dead group, still looks.
  void check_now_and_then(Deadline::Clock::time_point now);

  /// True once a reason is recorded. Any thread.
  bool raised() const { return raised_.load(std::memory_order_acquire); }

  /// True when `rank`'s process ended or left the group. As of the last check().
  bool closed(int rank) const;

  /// The recorded reason; "" if there is none. Any thread.
  std::string reason() const;

  /// The ranks that operation `sequence` has been waiting for longer than a moment. Any thread.
  void set_awaited(std::uint64_t sequence, std::vector<int> ranks);
  Awaited awaited() const;

  /// Called before a lost peer is reported: gives another rank's explanation `patience` to arrive, and throws it if it
  /// does.
  void settle(std::chrono::milliseconds patience);

  /// Adds the open connections, so that a poll() on data wakes up for them too.
  void append_to(std::vector<pollfd>& entries) const;

 private:
  struct Peer {
    Socket socket;
    std::string received;
    bool closed = false;
  };

  void record(ErrorKind kind, const std::string& message);
  void look();
  void read_from(int rank, Peer& peer);
  void parse(int rank, Peer& peer);

  const int rank_;
  mutable std::mutex mutex_;
  std::map<int, Peer> peers_;
  std::atomic<bool> raised_{false};
  Deadline::Clock::time_point looked_{};
  ErrorKind kind_ = ErrorKind::system;
  std::string message_;
  Awaited awaited_;
};

}  // namespace smddp
