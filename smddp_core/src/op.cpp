#include "op.hpp"

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp {

std::string who(const Op& op, const std::vector<int>& ranks) {
  return op.topology ? op.topology->who(ranks) : join_ranks(ranks);
}

void check_same(const Op& op, int rank, const OpHeader& theirs, int peer) {
  if (theirs == op.header) return;
  MismatchError error("ranks called different operations: " +
                      rank_name(rank, op.topology ? op.topology->job_ranks : std::vector<int>()) + " is in " +
                      describe(op.header) + ", " + who(op, {peer}) + " is in " + describe(theirs) +
                      "; all ranks must make the same calls in the same order");
  error.set_ranks({peer});
  throw error;
}

void throw_timeout(const Op& op, const std::vector<int>& missing) {
  std::ostringstream text;
  text << describe(op.header) << ": Timed out after " << op.deadline.seconds() << " s waiting for " << who(op, missing);
  TimeoutError error(text.str());
  error.set_ranks(missing);
  throw error;
}

std::string loss_text(int error_number, const std::string& farewell) {
  if (!farewell.empty()) return "closed its connection (" + farewell + ")";
  if (error_number == 0 || error_number == ECONNRESET || error_number == EPIPE)
    return "closed its connection (its process ended or left the group)";
  return std::string("cannot be reached any more: ") + std::strerror(error_number) +
         " (its host is down or cut off; see SMDDP_LINK_TIMEOUT)";
}

void throw_peer_closed(const Op& op, int peer, const std::string& how) {
  PeerError error(describe(op.header) + ": " + who(op, {peer}) + " " + how);
  error.set_ranks({peer});
  throw error;
}

}  // namespace smddp
