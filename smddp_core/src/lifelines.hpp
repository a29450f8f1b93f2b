// Every rank is connected to rank 0 before anything else: a lifeline, on which all learn of a rank that dies or fails
// while the group is being set up (and later, of failures in parts of the group that they have no connection to).
#pragma once

#include <functional>
#include <string>

#include "rendezvous.hpp"
#include "smddp/communicator.hpp"
#include "transport/connect.hpp"
#include "transport/control.hpp"

namespace smddp {

/// What rank 0 says first of all: where to find it, and the group's nonce.
struct Root {
  RankInfo info;
  Nonce nonce{};
  std::string key;  ///< Of handshakes. Does not travel.
};

class Lifelines {
 public:
  /// @param control gets the lifelines.
  Lifelines(Rendezvous& meeting_point, const CommunicatorOptions& options, Control& control)
      : meeting_point_(meeting_point), options_(options), control_(control) {}

  /// Rank 0 returns when all others have called it, these when they have reached it.
  /// @param listener of this rank, which is `mine`.
  /// @throws TimeoutError naming the ranks that did not come, PeerError for one that excused itself (see give_up()) or
  /// does not know the job's secret, UsageError for one of another version.
  Root meet(const Socket& listener, const RankInfo& mine);

  /// This rank fails: tells those that have met it and, if it has not met rank 0 yet, leaves word of it for that one.
  void give_up(const Error& error);

 private:
  Root open(const Socket& listener, const RankInfo& mine);
  Root join(const Socket& listener);
  void call_rank_0(const Socket& listener, const Root& root, const std::string& text);
  void run(Meeting& meeting, const std::function<void(int)>& met);
  bool changed_soon(const std::string& text);

  Rendezvous& meeting_point_;
  const CommunicatorOptions& options_;
  Control& control_;
  bool begun_ = false;  // this rank has looked for rank 0
  bool met_ = false;    // and met it: it hears this rank
};

}  // namespace smddp
