// What moves bytes between hosts: ordered byte streams to every peer, all of them moved by the thread that asks for it.
//
// The collectives know this interface only; mesh.hpp implements it over TCP. There are no tags: what a rank posts to
// receive from a peer must be what that peer posts to send, in the same order and in pieces of the same sizes.
//
// Nothing moves but in progress(), wait() and run(), on the caller's thread. They throw when waiting is in vain:
// TimeoutError at op.deadline naming the ranks that are missing, PeerError, whatever Control::check() or a `done`
// throws. After that the wire cannot be used.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "op.hpp"

namespace smddp {

/// How long wait() sleeps at most: abort() from another thread is seen this late at worst.
constexpr std::chrono::milliseconds kLongestPoll{20};

class Wire {
 public:
  virtual ~Wire() = default;

  using Done = std::function<void()>;

  /// Appends a piece to what is sent to rank `peer`. The memory must stay as it is until `done` is called, or
  /// everything posted has moved. Nothing happens for zero bytes.
  virtual void send(int peer, const void* data, std::size_t bytes, Done done = {}) = 0;

  /// Appends a piece to what is received from rank `peer`. Nothing happens for zero bytes.
  ///
  /// `done` of both is called once the piece is complete, for one peer in the order of posting, from within progress(),
  /// wait() or run(); it may post more. A piece may be filled before `done` of the one in front of it was called.
  virtual void recv(int peer, void* data, std::size_t bytes, Done done = {}) = 0;

  /// Says that `peers` may not be in this operation yet (ranks without a connection are passed over). Until release(),
  /// the wire may keep back what is posted for such a peer, but for the first few kilobytes.
  virtual void hold(const std::vector<int>& /*peers*/) {}
  virtual void release(int /*peer*/) {}

  /// Moves what can be moved without waiting.
  virtual void progress(const Op& op) = 0;

  /// Sleeps until something can move, but not for long (so that a caller sees what else it waits for), and moves it.
  virtual void wait(const Op& op) = 0;

  /// Lets go of the memory of everything that was posted, without finishing it. For an operation that has failed:
  /// afterwards the wire cannot be used.
  virtual void abandon() {}

  /// True when everything that was posted has moved.
  virtual bool idle() const = 0;

  /// Moves everything that was posted.
  void run(const Op& op) {
    // Optimistic first turn: small messages leave, and often arrive, without sleeping.
    if (!idle()) progress(op);
    while (!idle()) wait(op);
  }

  /// Moves what was posted until `finished()`, which something that is posted must bring about.
  template <class Finished>
  void run_until(const Op& op, Finished finished) {
    if (!finished()) progress(op);
    while (!finished()) wait(op);
  }
};

}  // namespace smddp
