#include "smddp/errors.hpp"

#include <cerrno>
#include <cstring>

namespace smddp {

namespace {

const std::string kName = "smddp: ";

}  // namespace

std::string without_name(const std::string& message) {
  std::string text = message;
  for (std::size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at))
    text.erase(at, kName.size());
  return text;
}

std::string with_name(const std::string& message) { return kName + without_name(message); }

void throw_error(ErrorKind kind, const std::string& message) {
  switch (kind) {
    case ErrorKind::timeout:
      throw TimeoutError(message);
    case ErrorKind::peer:
      throw PeerError(message);
    case ErrorKind::mismatch:
      throw MismatchError(message);
    case ErrorKind::aborted:
      throw AbortedError(message);
    case ErrorKind::usage:
      throw UsageError(message);
    case ErrorKind::system:
      break;
  }
  throw Error(ErrorKind::system, message);
}

void throw_system(const std::string& what, int error_number) {
  std::string text = what + ": " + std::strerror(error_number);
  if (error_number == EMFILE) text += " in this process; raise its limit (ulimit -n, or LimitNOFILE of the service)";
  throw Error(ErrorKind::system, text);
}

std::string rank_name(int rank, const std::vector<int>& job_ranks) {
  const auto at = static_cast<std::size_t>(rank);
  if (rank < 0 || at >= job_ranks.size() || job_ranks[at] == rank) return "rank " + std::to_string(rank);
  return "rank " + std::to_string(job_ranks[at]) + " (" + std::to_string(rank) + " in its group)";
}

std::string join_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace smddp
