#include "delegated_recorder.hpp"

#include <utility>

namespace smddp {
namespace {

// Sends and receives that nobody waits for stay among these.
constexpr std::size_t kMostRunning = 1024;

std::int64_t unix_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

std::uint64_t DelegatedRecorder::begin(DelegatedRecord what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  what.id = ++issued_;
  what.state = OpState::running;
  what.started_ns = unix_now();
  OpCounters& sum = counters_[what.name];
  ++sum.calls;
  running_[issued_] = std::move(what);
  if (running_.size() > kMostRunning) running_.erase(running_.begin());
  return issued_;
}

void DelegatedRecorder::number(std::uint64_t id, std::uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = running_.find(id);
  if (found != running_.end()) found->second.number = number;
}

void DelegatedRecorder::add_exposed(const std::string& name, std::chrono::nanoseconds time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_[name].exposed_seconds += static_cast<double>(time.count()) * 1e-9;
}

void DelegatedRecorder::end(std::uint64_t id, bool failed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  DelegatedRecord record = std::move(found->second);
  running_.erase(found);
  record.state = failed ? OpState::failed : OpState::done;
  record.ended_ns = unix_now();
  OpCounters& sum = counters_[record.name];
  sum.failures += failed ? 1 : 0;
  sum.bytes += failed ? 0 : record.bytes;
  sum.seconds += static_cast<double>(record.ended_ns - record.started_ns) * 1e-9;
  if (sum.seconds > 0) sum.bytes_per_second = static_cast<double>(sum.bytes) / sum.seconds;
  ended_.push_back(std::move(record));
  if (ended_.size() > capacity_) ended_.pop_front();
}

std::vector<DelegatedRecord> DelegatedRecorder::recent() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<DelegatedRecord> all(ended_.begin(), ended_.end());
  if (capacity_ > 0)
    for (const auto& [id, record] : running_) all.push_back(record);
  return all;
}

std::map<std::string, OpCounters> DelegatedRecorder::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace smddp
