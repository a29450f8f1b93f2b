// How a host's ranks learn what suits the machine: the part of HostTier that runs once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <sstream>

#include "collective/host_tier.hpp"

namespace smddp {
namespace {

// The first of each find pages that were never touched.
constexpr int kProbes = 5;
// Streaming costs up to twice as much where caches are shared and gains seven times where they are not: in doubt,
// cached.
constexpr double kClearly = 1.5;
// Smaller chunks say nothing about the caches.
constexpr std::size_t kLeastProbe = std::size_t{64} << 10;

Reduction sum_of_floats() { return {ReduceOp::sum, DType::f32, DType::f32, 1}; }

}  // namespace

// What counts is measured itself, not the latency between two of the cores: an exchange of one chunk.
double HostTier::time_of_chunk(const Op& op, Stores stores, Scratch& memory) {
  using Clock = std::chrono::steady_clock;
  stores_ = stores;
  barrier(op);
  const auto start = Clock::now();
  const std::size_t bytes = arena_.chunk_bytes();
  std::byte* data = memory.at_least(bytes);
  Chunk chunk{{}, data, data, bytes / sizeof(float)};
  copy_in(op, chunk, sizeof(float));
  reduce_own(op, chunk, sum_of_floats(), false);
  copy_out(op, chunk, sizeof(float));
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void HostTier::tune(const Op& op, const std::string& stores) {
  arena_.meet(op);
  const bool probe = stores.empty() && arena_.chunk_bytes() >= kLeastProbe;
  Stores chosen = stores == "streaming" ? Stores::streaming : Stores::cached;
  if (probe) {
    Scratch memory;
    std::fill_n(memory.at_least(arena_.chunk_bytes()), arena_.chunk_bytes(), std::byte{0});
    double cached = std::numeric_limits<double>::max();
    double streaming = cached;
    for (int turn = 0; turn < kProbes; ++turn) {
      cached = std::min(cached, time_of_chunk(op, Stores::cached, memory));
      streaming = std::min(streaming, time_of_chunk(op, Stores::streaming, memory));
    }
    if (cached > kClearly * streaming) chosen = Stores::streaming;
    std::ostringstream text;
    text.precision(0);
    text << std::fixed << " (a chunk cached " << cached << " us, streaming " << streaming << " us)";
    probed_ = text.str();
  }
  if (rank() == 0) arena_.decide(chosen);
  barrier(op);
  stores_ = arena_.stores();
}

std::string HostTier::description() const {
  return std::string(stores_ == Stores::streaming ? "streaming" : "cached") + " stores" + probed_ + ", chunks of " +
         std::to_string(arena_.chunk_bytes() >> 10) + " KiB, " +
         (arena_.spinning() ? "a core for each rank" : "fewer cores than ranks: no spinning");
}

}  // namespace smddp
