// Waits between two ranks that must hear of what befalls a third.
#pragma once

#include <string>

#include "compat.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// gloo's sends and receives end when their own peer answers, or at their timeout, and cannot be asked whether they are
/// done. While this lives, a thread of the process looks after the group some times a second, and aborts the work when
/// the group is dead or a rank has died. After a while it tells the peer, whose message may be another one.
class P2pWatch {
 public:
  /// @param work, communicator outlive this. @param any whether it waits for any rank, and not for one.
  /// @param message its number is 0 where there is nothing to tell the peer.
  P2pWatch(WorkBase& work, Communicator& communicator, std::string title, PeerMessage message, bool any);
  ~P2pWatch();
  P2pWatch(const P2pWatch&) = delete;
  P2pWatch& operator=(const P2pWatch&) = delete;

  /// Whether the work was aborted: the communicator says why.
  bool aborted() const;

 private:
  friend class P2pWatcher;

  WorkBase& work_;
  Communicator& communicator_;
  const std::string title_;
  const PeerMessage message_;
  const bool any_;
  int looks_ = 0;         // under the watcher's lock
  bool told_ = false;     // likewise
  bool aborted_ = false;  // under the watcher's lock
};

}  // namespace smddp::torch_binding
