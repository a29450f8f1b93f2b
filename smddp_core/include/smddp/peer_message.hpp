// Messages between two ranks that another library carries for the group.
#pragma once

#include <cstdint>
#include <string>

namespace smddp {

/// One side of a message: what the sender sends, or what the receiver has room for.
struct PeerMessage {
  bool sends = false;
  int peer = -1;  ///< -1: any.
  int tag = 0;
  std::uint64_t bytes = 0;
  std::string type;          ///< Of the elements.
  std::uint64_t number = 0;  ///< Among those of this direction, peer and tag, from 1; 0: not counted.
};

/// The tag that such a message travels under, so that it meets only one of the same tag, type and size: libraries that
/// compare nothing take less than there is room for as all, and end the process if it is more. In 0 ... 2^31 - 1; two
/// of other sizes have the same one by chance only.
int travelling_tag(const PeerMessage& message);

/// "send to rank 1 (Float, 40 bytes, tag 3)", with the peer named as `peer_name`.
std::string in_words(const PeerMessage& message, const std::string& peer_name);

}  // namespace smddp
