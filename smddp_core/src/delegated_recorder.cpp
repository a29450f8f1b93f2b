#include "delegated_recorder.hpp"

#include <algorithm>
#include <utility>

namespace smddp {
namespace {

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
  last_.push_back(std::move(what));
  if (last_.size() > capacity_) last_.pop_front();
  return issued_;
}

void DelegatedRecorder::end(std::uint64_t id, bool failed, std::chrono::nanoseconds exposed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(last_.begin(), last_.end(), [id](const auto& record) { return record.id == id; });
  if (found == last_.end() || found->state != OpState::running) return;
  found->state = failed ? OpState::failed : OpState::done;
  found->ended_ns = unix_now();
  OpCounters& sum = counters_[found->name];
  sum.failures += failed ? 1 : 0;
  sum.bytes += failed ? 0 : found->bytes;
  sum.seconds += static_cast<double>(found->ended_ns - found->started_ns) * 1e-9;
  sum.exposed_seconds += static_cast<double>(exposed.count()) * 1e-9;
  if (sum.seconds > 0) sum.bytes_per_second = static_cast<double>(sum.bytes) / sum.seconds;
}

std::vector<DelegatedRecord> DelegatedRecorder::recent() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {last_.begin(), last_.end()};
}

std::map<std::string, OpCounters> DelegatedRecorder::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace smddp
