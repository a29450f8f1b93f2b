#include "smddp/flight_recorder.hpp"

#include <cstring>

namespace smddp {
namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// Only one thread adds, so a load and a store do, without a locked instruction.
void add(std::atomic<std::uint64_t>& total, std::uint64_t amount) {
  total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

// Of all groups, those that have ended included. A list that only grows (some 250 bytes a group) needs no lock, which
// the child of a fork could find taken for ever.
std::atomic<GroupTotals*> newest{nullptr};

GroupTotals& new_totals() {
  auto* const totals = new GroupTotals;
  totals->next = newest.load(std::memory_order_relaxed);
  while (!newest.compare_exchange_weak(totals->next, totals, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return *totals;
}

void add_to(OpCounters& counters, const OpTotals& sum) {
  const auto seconds = [](const std::atomic<std::uint64_t>& total) {
    return static_cast<double>(total.load(std::memory_order_relaxed)) * 1e-9;
  };
  counters.calls += sum.calls.load(std::memory_order_relaxed);
  counters.failures += sum.failures.load(std::memory_order_relaxed);
  counters.bytes += sum.bytes.load(std::memory_order_relaxed);
  counters.seconds += seconds(sum.nanoseconds);
  counters.exposed_seconds += seconds(sum.exposed) + seconds(sum.exposed_elsewhere);
  if (counters.seconds > 0) counters.bytes_per_second = static_cast<double>(counters.bytes) / counters.seconds;
}

nanoseconds unix_offset() {
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  return duration_cast<nanoseconds>(unix_now) -
         duration_cast<nanoseconds>(FlightRecorder::Clock::now().time_since_epoch());
}

}  // namespace

const char* name_of(OpState state) {
  static const char* const names[] = {"running", "done", "failed"};
  return names[static_cast<std::size_t>(state)];
}

FlightRecorder::FlightRecorder(std::size_t capacity)
    : capacity_(capacity),
      to_unix_(unix_offset()),
      slots_(capacity ? new Slot[capacity] : nullptr),
      totals_(new_totals()) {}

OpTotals& FlightRecorder::totals(OpKind kind) const { return totals_.by_kind[static_cast<std::size_t>(kind)]; }

std::int64_t FlightRecorder::unix_time(Clock::time_point time) const {
  return (duration_cast<nanoseconds>(time.time_since_epoch()) + to_unix_).count();
}

// Every word is a release store: a reader that sees one of these words also sees the odd version before it.
void FlightRecorder::write(Slot& slot, const OpHeader& header, std::uint64_t started, std::uint64_t ended_and_failed) {
  std::array<std::uint64_t, kWords> words{};
  std::memcpy(words.data(), &header, sizeof(header));
  words[kWords - 2] = started;
  words[kWords - 1] = ended_and_failed;
  const std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

void FlightRecorder::begin(const OpHeader& header, Clock::time_point now) {
  current_ = header;
  current_start_ = now;
  const std::uint64_t number = begun_.load(std::memory_order_relaxed);
  if (capacity_ > 0) write(slots_[number % capacity_], header, static_cast<std::uint64_t>(unix_time(now)), 0);
  begun_.store(number + 1, std::memory_order_release);
}

void FlightRecorder::end(bool failed, Clock::time_point now) {
  OpTotals& sum = totals(current_.kind);
  const std::uint64_t bytes = failed ? 0 : current_.bytes;
  add(sum.calls, 1);
  add(sum.failures, failed ? 1 : 0);
  add(sum.bytes, bytes);
  const auto time = static_cast<std::uint64_t>(duration_cast<nanoseconds>(now - current_start_).count());
  add(sum.nanoseconds, time);
  if (exposed_) add(sum.exposed, time);
  if (capacity_ == 0) return;
  Slot& slot = slots_[(begun_.load(std::memory_order_relaxed) - 1) % capacity_];
  // The lowest bit of the time says how it ended; Unix time in nanoseconds can spare it.
  const std::uint64_t ended = static_cast<std::uint64_t>(unix_time(now)) / 2 * 2 + (failed ? 1 : 0);
  const std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  slot.words[kWords - 1].store(ended, std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

void FlightRecorder::add_exposed(OpKind kind, nanoseconds time) {
  const auto amount = static_cast<std::uint64_t>(time.count());
  totals(kind).exposed_elsewhere.fetch_add(amount, std::memory_order_relaxed);
}

std::vector<OpRecord> FlightRecorder::recent() const {
  std::vector<OpRecord> records;
  if (capacity_ == 0) return records;
  const std::uint64_t end = begun_.load(std::memory_order_acquire);
  std::uint64_t last = 0;
  for (std::uint64_t number = end > capacity_ ? end - capacity_ : 0; number < end; ++number) {
    const Slot& slot = slots_[number % capacity_];
    const std::uint64_t version = slot.version.load(std::memory_order_acquire);
    std::array<std::uint64_t, kWords> words{};
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (version % 2 != 0 || slot.version.load(std::memory_order_relaxed) != version) continue;
    OpRecord record;
    std::memcpy(static_cast<void*>(&record.header), words.data(), sizeof(record.header));
    // Overwritten by a younger one while this loop went round.
    if (record.header.sequence <= last) continue;
    last = record.header.sequence;
    record.started_ns = static_cast<std::int64_t>(words[kWords - 2]);
    record.ended_ns = static_cast<std::int64_t>(words[kWords - 1]);
    if (record.ended_ns != 0) record.state = record.ended_ns % 2 ? OpState::failed : OpState::done;
    records.push_back(record);
  }
  return records;
}

OpCounters FlightRecorder::counters(OpKind kind) const {
  OpCounters counters;
  add_to(counters, totals(kind));
  return counters;
}

OpCounters process_counters(OpKind kind) {
  OpCounters counters;
  for (const GroupTotals* group = newest.load(std::memory_order_acquire); group; group = group->next)
    add_to(counters, group->by_kind[static_cast<std::size_t>(kind)]);
  return counters;
}

}  // namespace smddp
