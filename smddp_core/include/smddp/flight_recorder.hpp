// What a group has done lately and in total: a ring of its last operations, and counters by kind of operation.
//
// One thread at a time writes (operations of a group are serialised), any thread reads. Nothing here takes a lock or
// needs a locked instruction: the cost to an operation is one look at the clock and two dozen stores.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "smddp/types.hpp"

namespace smddp {

/// How far an operation is.
enum class OpState : std::uint8_t { running, done, failed };

const char* name_of(OpState state);

/// An operation as the recorder remembers it. Times are nanoseconds of the system's clock (Unix time).
struct OpRecord {
  OpHeader header;
  OpState state = OpState::running;
  std::int64_t started_ns = 0;
  std::int64_t ended_ns = 0;  ///< 0 while running.
};

/// Totals of one kind of operation.
struct OpCounters {
  std::uint64_t calls = 0;
  std::uint64_t failures = 0;
  std::uint64_t bytes = 0;      ///< Sum of OpHeader::bytes.
  double seconds = 0;           ///< In the operation, on the thread that carried it out.
  double exposed_seconds = 0;   ///< Somebody was blocked until it was done.
  double bytes_per_second = 0;  ///< algbw: bytes / seconds.
};

/// The same, while they grow. Times are nanoseconds.
struct OpTotals {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> nanoseconds{0};
  std::atomic<std::uint64_t> exposed{0};            ///< In operations whose thread itself was blocked by them.
  std::atomic<std::uint64_t> exposed_elsewhere{0};  ///< From add_exposed(), by any thread.
};

/// Those of a group, by kind. They outlive it, as a part of what the process has done.
struct GroupTotals {
  std::array<OpTotals, kOpKinds> by_kind;
  GroupTotals* next = nullptr;
};

/// What all groups of this process have done so far, those that have ended included. Any thread.
OpCounters process_counters(OpKind kind);

class FlightRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param capacity operations to remember; 0 remembers none and only counts.
  explicit FlightRecorder(std::size_t capacity);

  /// The operation begins. `now` is passed in because the caller has just looked.
  void begin(const OpHeader& header, Clock::time_point now);

  /// Whether somebody is blocked by the operations that begin from now on: then all of their time is exposed.
  void set_exposed(bool exposed) { exposed_ = exposed; }

  /// The operation that began last is over.
  void end(bool failed, Clock::time_point now);

  /// Somebody was blocked this long for an operation of this kind. Any thread.
  void add_exposed(OpKind kind, std::chrono::nanoseconds time);

  /// The operations remembered, oldest first. Any thread; one that is being written is left out.
  std::vector<OpRecord> recent() const;

  /// Any thread.
  OpCounters counters(OpKind kind) const;

 private:
  // The words of a record, and a version that is odd while they change.
  static constexpr std::size_t kWords = sizeof(OpHeader) / sizeof(std::uint64_t) + 2;
  struct Slot {
    std::atomic<std::uint64_t> version{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };

  OpTotals& totals(OpKind kind) const;
  std::int64_t unix_time(Clock::time_point time) const;
  void write(Slot& slot, const OpHeader& header, std::uint64_t started, std::uint64_t ended_and_failed);

  const std::size_t capacity_;
  const std::chrono::nanoseconds to_unix_;  // steady clock to Unix time
  std::unique_ptr<Slot[]> slots_;
  std::atomic<std::uint64_t> begun_{0};
  OpHeader current_;
  bool exposed_ = false;
  Clock::time_point current_start_;
  GroupTotals& totals_;
};

}  // namespace smddp
