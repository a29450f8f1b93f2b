// What lies in an arena's memory before the rings; for arena*.cpp alone.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "op.hpp"
#include "transport/arena.hpp"
#include "transport/peer_memory.hpp"

namespace smddp {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "counters are shared between processes");

// Counters of one rank. They are written by that rank alone (but `sleepers`) and alone on their cache lines: two of 64
// bytes, since the hardware fetches lines in pairs.
struct alignas(128) Arena::Lane {
  std::atomic<std::uint64_t> published;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint64_t> unread;    // the last round of which it could not fetch what it should
  std::atomic<std::uint32_t> bell;      // futex word: changes with every signal that somebody may sleep on
  std::atomic<std::uint32_t> sleepers;  // ranks that sleep on the bell
  std::atomic<int> core;                // that it ran on at its last signal
  cpu_set_t cores;                      // that it may use
  MemoryProof proof;
  std::atomic<bool> reads_all;  // every other rank's memory
  std::atomic<bool> obeys;      // far fences, and has a core of its own
  std::atomic<std::uint32_t> withdrawn;
  struct {
    OpHeader op;
    Remark remark;
  } announced[kUnits];  // of the last rounds, each of which has at least a unit
};

struct alignas(128) Arena::Header {
  std::uint64_t magic;
  std::uint32_t ranks;
  std::uint64_t chunk_bytes;
  Nonce nonce;
  std::atomic<Stores> stores;
  std::atomic<bool> direct;
  std::atomic<bool> measured;
  std::atomic<bool> tries;
};

inline Arena::Header& Arena::header() const { return *reinterpret_cast<Header*>(segment_.data()); }

// A fresh segment is all zero bytes, which are the counters' initial values.
inline Arena::Lane& Arena::lane(int local_rank) const {
  return reinterpret_cast<Lane*>(segment_.data() + sizeof(Header))[local_rank];
}

}  // namespace smddp
