// An operation under way: what it is and until when it may take.
#pragma once

#include <string>
#include <vector>

#include "smddp/deadline.hpp"
#include "smddp/residual.hpp"
#include "smddp/topology.hpp"
#include "smddp/types.hpp"

namespace smddp {

struct Op {
  OpHeader header;
  Deadline deadline;
  Residual* residual = nullptr;  ///< For error feedback, if the caller keeps any; used with a 16-bit wire format only.
  const Topology* topology = nullptr;  ///< To name ranks with their hosts. May be absent.
};

/// "rank 2 on node-b (10.0.0.2)", as far as the operation knows.
std::string who(const Op& op, const std::vector<int>& ranks);

/// @throws MismatchError naming both operations when `theirs` (announced by `peer`) is not `op`.
void check_same(const Op& op, int rank, const OpHeader& theirs, int peer);

/// @throws TimeoutError naming the operation, the time allowed and the ranks in `missing`.
[[noreturn]] void throw_timeout(const Op& op, const std::vector<int>& missing);

/// @throws PeerError naming the operation and `peer`. @param how its connection ended: see loss_text().
[[noreturn]] void throw_peer_closed(const Op& op, int peer, const std::string& how);

/// "closed its connection (...)", "cannot be reached any more: ...". @param error_number how it ended; 0: in good
/// order.
/// @param farewell what the rank said of its end, if anything.
std::string loss_text(int error_number, const std::string& farewell);

}  // namespace smddp
