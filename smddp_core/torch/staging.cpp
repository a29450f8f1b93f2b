#include "staging.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "device.hpp"
#include "security/crc32c.hpp"
#include "smddp/errors.hpp"

namespace smddp::torch_binding {
namespace {

using Clock = std::chrono::steady_clock;

// The first piece's way to the host and the last one's back are what is seen of the copies. Each piece ends with a wait
// for other ranks.
constexpr std::int64_t kPieces = 8;
constexpr std::int64_t kSmallestPieceBytes = std::int64_t{4} << 20;

// Of a tag, those that a message's size may use.
constexpr std::uint32_t kSizeBits = 0x3FFFFFFCU;

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::nanoseconds kShortestNap{20'000};
constexpr std::chrono::nanoseconds kLongestNap{1'000'000};
// How often a rank that waits asks whether the others live.
constexpr std::chrono::milliseconds kPeersInterval{20};

std::int64_t step_of(const at::Tensor& run, bool whole) {
  if (whole || run.numel() == 0) return std::max<std::int64_t>(run.numel(), 1);
  const auto width = static_cast<std::int64_t>(run.element_size());
  return std::max((run.numel() + kPieces - 1) / kPieces, kSmallestPieceBytes / width);
}

// Asleep for the most part, and no longer than a sixteenth of what was waited so far: the device may be at work for
// long before it comes to the copy, and synchronizing with it would take a core all the while. What the copy waits for,
// NCCL's work, may wait in turn for a rank that is gone.
void wait_for(const c10::Event& event, Communicator& communicator, std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  auto next_look = start + kPeersInterval;
  while (!event.query()) {
    const auto now = Clock::now();
    if (now > start + kSpin)
      std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>((now - start) / 16, kShortestNap, kLongestNap));
    if (now < next_look) continue;
    next_look = now + kPeersInterval;
    try {
      communicator.check_alive("all_reduce", 0);
      if (timeout != kNoTimeout && now - start > timeout)
        throw TimeoutError("all_reduce: the sum inside the host (NCCL) is not done after " +
                           std::to_string(timeout.count()) + " ms: a rank of this host is missing, or its GPU is busy");
    } catch (const Error& error) {
      communicator.fail(error);
    }
  }
}

}  // namespace

void all_reduce_staged(const at::Tensor& run, Communicator& communicator, bool whole, std::chrono::milliseconds timeout,
                       const Exchange& exchange) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(run.device().type()).getStream(run.device());
  const at::Tensor staging = empty_staging(run);
  const std::int64_t step = step_of(run, whole);
  const auto piece = [step, &run](const at::Tensor& of, std::int64_t at) {
    return of.narrow(0, at, std::min(step, run.numel() - at));
  };
  std::vector<c10::Event> arrived;
  std::int64_t at = 0;
  do {
    piece(staging, at).copy_(piece(run, at), /*non_blocking=*/true);
    arrived.emplace_back(stream.device_type());
    arrived.back().record(stream);
    at += step;
  } while (at < run.numel());
  const std::int64_t total = run.numel();
  const std::uint32_t tag = arrived.size() > 1 ? crc32c(0, &total, sizeof(total)) & kSizeBits : 0;
  at = 0;
  for (const c10::Event& event : arrived) {
    wait_for(event, communicator, timeout);
    const at::Tensor here = piece(staging, at);
    exchange(here.data_ptr(), here.numel(), tag);
    piece(run, at).copy_(here, /*non_blocking=*/true);
    at += step;
  }
}

}  // namespace smddp::torch_binding
