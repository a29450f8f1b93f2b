// Meeting of ranks over TCP: every pair that needs it gets one socket a channel, each end sure of whom it talks to.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "smddp/deadline.hpp"
#include "smddp/topology.hpp"
#include "transport/handshake.hpp"
#include "transport/socket.hpp"

namespace smddp {

/// Sockets of one channel, by the peer's rank in the group.
using Peers = std::map<int, Socket>;

/// Kinds of connection between two ranks.
enum class Channel : int {
  control = 0,  ///< Aborts, and the news that a process ended. Nearly always silent.
  data = 1,     ///< Messages; stream s is channel data + s.
};

/// A peer and a channel.
using Line = std::pair<int, int>;

/// One round of connecting: calls some ranks, is called by others, all at once in one poll loop.
///
/// Strangers cost nothing but their descriptor: what they send is checked before anything is done with it, and one that
/// says nothing is dropped after a few seconds without keeping anybody else waiting.
class Meeting {
 public:
  /// @param listener of this rank. @param key see handshake_key(). @param watch called several times a second; throws
  /// when there is no point in going on.
  Meeting(const Socket& listener, int rank, std::vector<int> job_ranks, std::string key, const Deadline& deadline,
          std::function<void()> watch);

  /// The other end calls.
  void expect(Line line) { expected_.insert(line); }

  /// This end calls, again and again until the deadline; for a few seconds only if the other machine refuses, since a
  /// rank listens before its address is known.
  void call(Line line, const RankInfo& there);

  /// Gives every line's socket to `take` as soon as it stands; once more if the other end had to call again: then only
  /// the last one counts. @throws TimeoutError naming the ranks that did not come, PeerError for one that
  /// refuses connections or does not know the key.
  void run(const std::function<void(Line, Socket)>& take);

 private:
  enum class Step { idle, connecting, greeted, proved, done };
  struct Call {
    Call(Line to, RankInfo where, Caller with) : line(to), there(std::move(where)), caller(std::move(with)) {}
    Line line;
    RankInfo there;
    Caller caller;
    Step step = Step::idle;
    Socket socket;
    std::string received;
    Deadline::Clock::time_point again{};          // not before
    Deadline::Clock::time_point refused_since{};  // zero when it was not
    int error_number = 0;                         // of the last attempt
  };
  struct Guest {
    Guest(Socket from, Listener with, Deadline until)
        : socket(std::move(from)), manners(std::move(with)), patience(until) {}
    Socket socket;
    Listener manners;
    Deadline patience;
    bool greeted = false;
    std::string received;
  };

  bool complete() const;
  void begin(Call& call);
  void retry(Call& call, int error_number);
  void advance(Call& call);
  void made(Line line, Socket socket);
  void accept_all();
  bool advance(Guest& guest);  // false when it is to be dropped or was taken
  void turn_away();
  void poll_once();
  std::string in_the_job(std::vector<int> ranks) const;
  [[noreturn]] void give_up() const;

  const Socket& listener_;
  const int rank_;
  const std::vector<int> job_ranks_;
  const std::string key_;
  const Deadline& deadline_;
  const std::function<void()> watch_;
  std::vector<Call> calls_;
  std::vector<Guest> guests_;
  std::set<Line> expected_;
  std::set<Line> made_;
  const std::function<void(Line, Socket)>* take_ = nullptr;
};

}  // namespace smddp
