// What a group's operations that another library carries out took, and the last of them. Those are slow enough for a
// lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "smddp/flight_recorder.hpp"

namespace smddp {

/// Such an operation. Times as in OpRecord.
struct DelegatedRecord {
  std::uint64_t id = 0;
  std::string name;          ///< "gather"
  std::uint64_t number = 0;  ///< Among the group's operations; 0 for those between two ranks, and before agree().
  int peer = -1;             ///< The other rank of those.
  std::uint64_t bytes = 0;
  OpState state = OpState::running;
  std::int64_t started_ns = 0;
  std::int64_t ended_ns = 0;
};

class DelegatedRecorder {
 public:
  /// @param capacity operations to remember.
  explicit DelegatedRecorder(std::size_t capacity) : capacity_(capacity) {}

  /// The operation is issued. @param what its times and state are not looked at. @return its id, for end().
  std::uint64_t begin(DelegatedRecord what);

  /// It is the group's `number`-th operation.
  void number(std::uint64_t id, std::uint64_t number);

  /// Somebody knows that it is over.
  void end(std::uint64_t id, bool failed);

  /// Somebody was blocked by an operation of that name.
  void add_exposed(const std::string& name, std::chrono::nanoseconds time);

  /// In the order in which they ended, then those under way.
  std::vector<DelegatedRecord> recent() const;

  /// By name. `seconds` is from issue until somebody knew that it was over.
  std::map<std::string, OpCounters> counters() const;

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::uint64_t issued_ = 0;
  std::map<std::uint64_t, DelegatedRecord> running_;
  std::deque<DelegatedRecord> ended_;
  std::map<std::string, OpCounters> counters_;
};

}  // namespace smddp
