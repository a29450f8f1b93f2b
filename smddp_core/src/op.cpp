#include "op.hpp"

#include <sstream>

#include "smddp/errors.hpp"

namespace smddp {

void check_same(const Op& op, int rank, const OpHeader& theirs, int peer) {
  if (theirs == op.header) return;
  throw MismatchError("smddp: ranks called different operations: rank " + std::to_string(rank) + " is in " +
                      describe(op.header) + ", rank " + std::to_string(peer) + " is in " + describe(theirs) +
                      "; all ranks must make the same calls in the same order");
}

void throw_timeout(const Op& op, const std::vector<int>& missing) {
  std::ostringstream text;
  text << "smddp: " << describe(op.header) << ": timed out after " << op.deadline.seconds() << " s waiting for "
       << join_ranks(missing);
  throw TimeoutError(text.str());
}

void throw_peer_closed(const Op& op, int peer) {
  throw PeerError("smddp: " + describe(op.header) + ": rank " + std::to_string(peer) +
                  " closed its connection (its process ended or left the group)");
}

}  // namespace smddp
