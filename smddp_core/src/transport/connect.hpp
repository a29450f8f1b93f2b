// Meeting of ranks over TCP: every pair that needs it gets one socket a channel, each end sure of whom it talks to.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "smddp/topology.hpp"
#include "transport/socket.hpp"

namespace smddp {

/// Random text that only the ranks of one group know (through the store): strangers and ranks of an earlier run are
/// turned away.
using Nonce = std::array<char, 16>;
Nonce make_nonce();

/// Sockets of one channel, by the peer's rank in the group.
using Peers = std::map<int, Socket>;

/// Kinds of connection between two ranks.
enum class Channel : int {
  control = 0,  ///< Aborts, and the news that a process ended. Nearly always silent.
  data = 1,     ///< Messages; stream s is channel data + s.
};

/// Which peers to meet on each channel. Symmetric: if rank a lists b, rank b lists a.
struct Wanted {
  std::vector<int> control;
  std::vector<int> data;
  int streams = 1;  ///< Data connections to each peer.
};

struct Connections {
  Peers control;
  std::vector<Peers> data;  ///< By stream.
};

/// Connects to the wanted peers of lower rank and accepts those of higher rank.
/// @throws TimeoutError naming the ranks that did not come.
Connections connect_peers(const Socket& listener, const std::vector<RankInfo>& ranks, int rank, const Wanted& wanted,
                          const Nonce& nonce, const Deadline& deadline);

}  // namespace smddp
