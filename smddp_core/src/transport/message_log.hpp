// Whether two ranks mean the same by a message that another library carries between them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "smddp/peer_message.hpp"

namespace smddp {

/// The n-th send with a tag meets the n-th receive of its peer with that tag, so those two must be alike. Both ranks
/// count theirs; one that has waited for some time tells its peer for which one, who compares. No sockets, no locks.
class MessageLog {
 public:
  struct Contradiction {
    PeerMessage own;
    PeerMessage theirs;  ///< Its `peer` is the one who waits for it, and not this rank.
  };

  /// This rank issues `own`, whose number is set; it stays 0 where numbers mean nothing any more.
  std::optional<Contradiction> issue(PeerMessage& own);

  /// This rank receives from whoever comes first: numbers of receives mean nothing from now on.
  void issue_from_any() { from_any_ = true; }

  /// A peer waits for `theirs`, whose `peer` is that peer.
  std::optional<Contradiction> learn(PeerMessage theirs);

 private:
  using Channel = std::tuple<bool, int, int>;  // as of this rank: sends, peer, tag
  using Place = std::pair<Channel, std::uint64_t>;

  std::map<Channel, std::uint64_t> issued_;
  std::map<Place, PeerMessage> own_;
  std::deque<Place> oldest_;
  std::deque<PeerMessage> theirs_;  // for which this rank has not come to its own
  bool from_any_ = false;
};

}  // namespace smddp
