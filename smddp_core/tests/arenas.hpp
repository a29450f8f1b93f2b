// One segment of shared memory, used by two ranks that are threads.
#pragma once

#include <functional>

#include "ranks.hpp"
#include "transport/arena.hpp"

namespace smddp::testing {

/// Runs `body` as both ranks of an arena that they have joined, but not met in.
inline void run_arenas(const std::function<void(Arena&, int rank, const Op&)>& body) {
  const Arena::Layout layout{2, 65536, make_nonce(), 0};
  Arena first = Arena::create(layout);
  Arena second = Arena::open(first.address(), layout, Deadline(kTimeout));
  Control controls[2]{Control(0), Control(1)};
  Arena* arenas[2] = {&first, &second};
  run_threads(2, [&](int rank) {
    arenas[rank]->join(rank, {0, 1}, controls[rank]);
    body(*arenas[rank], rank, Op{OpHeader{}, Deadline(kTimeout)});
  });
}

}  // namespace smddp::testing
