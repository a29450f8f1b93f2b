// The ways an operation can fail, as types; the binding turns each into the Python exception of the same name.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace smddp {

/// What went wrong; also travels between ranks in abort messages, so values are fixed.
enum class ErrorKind : int { system = 0, timeout = 1, peer = 2, mismatch = 3, aborted = 4, usage = 5 };

/// `message` with the library's name in front, and nowhere else: errors of other ranks and layers are quoted in ours.
std::string with_name(const std::string& message);

/// The same without it.
std::string without_name(const std::string& message);

/// Base of all errors of this library. `system`: the operating system refused something.
class Error : public std::runtime_error {
 public:
  /// @param message begins with "smddp: " in what(), whether it does here or not.
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(with_name(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

  /// The ranks that are to blame, where that is known.
  const std::vector<int>& ranks() const { return ranks_; }
  void set_ranks(std::vector<int> ranks) { ranks_ = std::move(ranks); }

 private:
  ErrorKind kind_;
  std::vector<int> ranks_;
};

/// A peer is alive (or silent) but did not arrive in time.
class TimeoutError : public Error {
 public:
  explicit TimeoutError(const std::string& message) : Error(ErrorKind::timeout, message) {}
};

/// A peer's process ended or its connection broke.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ErrorKind::peer, message) {}
};

/// Ranks called different operations, or the same one with another type, size, root or reduction.
class MismatchError : public Error {
 public:
  explicit MismatchError(const std::string& message) : Error(ErrorKind::mismatch, message) {}
};

/// The group was aborted, here or on another rank.
class AbortedError : public Error {
 public:
  explicit AbortedError(const std::string& message) : Error(ErrorKind::aborted, message) {}
};

/// The caller asked for something that cannot be: bad size, bad rank, use after fork.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ErrorKind::usage, message) {}
};

/// Throws the type that belongs to `kind`. Unknown kinds (from a newer peer) become Error.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message);

/// Throws Error(system) with `what` and the text of `error_number` (an errno value).
[[noreturn]] void throw_system(const std::string& what, int error_number);

/// "rank 2" or "ranks 1, 3"; "no rank" when empty.
std::string join_ranks(const std::vector<int>& ranks);

/// "rank 1"; in a group of some of a job's ranks, whose r-th is the job's job_ranks[r], "rank 3 (1 in its group)".
std::string rank_name(int rank, const std::vector<int>& job_ranks);

}  // namespace smddp
