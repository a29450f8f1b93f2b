// All-reduces of a device's memory by way of the host's.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "compat.hpp"
#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// Sums one piece of a message in host memory, in place. @param tag what ranks must have in common of the whole
/// message, 0 where it is one piece.
using Exchange = std::function<void(void* data, std::int64_t count, std::uint32_t tag)>;

/// Sums `run` (one dimension, contiguous, on a device) on the current stream of its device. It is copied to pinned
/// memory, exchanged and copied back in pieces: later ones arrive while one is exchanged, and earlier ones leave.
/// Returns when the last copy is enqueued.
/// @param whole in one piece: where the exchange keeps something of a message for the next one.
/// @param timeout of each wait for a copy, which may be behind NCCL's work; kNoTimeout if nobody else's is.
/// @throws what ended the group.
void all_reduce_staged(const at::Tensor& run, Communicator& communicator, bool whole, std::chrono::milliseconds timeout,
                       const Exchange& exchange);

}  // namespace smddp::torch_binding
