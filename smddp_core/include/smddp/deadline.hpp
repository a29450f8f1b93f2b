// A point in time by which something must have happened.
#pragma once

#include <algorithm>
#include <chrono>

namespace smddp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts now. `timeout` must be positive; whatever is longer than a century is one.
  explicit Deadline(std::chrono::milliseconds timeout) : Deadline(Clock::now(), timeout) {}

  /// Starts at `start`, for callers that have just looked at the clock.
  Deadline(Clock::time_point start, std::chrono::milliseconds timeout)
      : timeout_(std::min(timeout, kLongest)), end_(start + timeout_) {}

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
  // The clock counts nanoseconds in 64 bits: "for ever" as the largest number of milliseconds would be in the past.
  static constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);

  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

}  // namespace smddp
