// A point in time by which something must have happened.
#pragma once

#include <chrono>

namespace smddp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts now. `timeout` must be positive.
  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout), end_(Clock::now() + timeout) {}

  /// Starts at `start`, for callers that have just looked at the clock.
  Deadline(Clock::time_point start, std::chrono::milliseconds timeout) : timeout_(timeout), end_(start + timeout) {}

  /// When it was made.
  Clock::time_point start() const { return end_ - timeout_; }

  bool passed() const { return Clock::now() >= end_; }

  /// Time left, at least zero, at most `cap`: loops wake up to look for aborts and dead peers.
  std::chrono::milliseconds left(std::chrono::milliseconds cap) const {
    const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    if (rest.count() < 0) return std::chrono::milliseconds(0);
    return rest < cap ? rest : cap;
  }

  /// The whole time that was allowed, in seconds; for messages.
  double seconds() const { return std::chrono::duration<double>(timeout_).count(); }

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

}  // namespace smddp
