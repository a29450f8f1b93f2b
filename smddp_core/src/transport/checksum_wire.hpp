// A wire that checks what arrives: every piece is followed by its CRC32C.
//
// SMDDP_CHECKSUM=1 puts it around whichever wire the group uses. It costs 4 bytes and two passes over each piece.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transport/wire.hpp"

namespace smddp {

class ChecksumWire final : public Wire {
 public:
  explicit ChecksumWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}

  void send(int peer, const void* data, std::size_t bytes, Done done = {}) override;

  /// @throws (from progress(), wait() or run()) Error naming both ranks when the piece is not what was sent. The
  /// piece's memory has been written by then, `done` is not called.
  void recv(int peer, void* data, std::size_t bytes, Done done = {}) override;

  void hold(const std::vector<int>& peers) override { wire_->hold(peers); }
  void release(int peer) override { wire_->release(peer); }
  void progress(const Op& op) override { finish_turn(op, &Wire::progress); }
  void wait(const Op& op) override { finish_turn(op, &Wire::wait); }
  void abandon() override { wire_->abandon(); }
  bool idle() const override { return wire_->idle(); }

 private:
  void finish_turn(const Op& op, void (Wire::*turn)(const Op&));
  void verify(int peer, const void* data, std::size_t bytes, std::uint32_t announced) const;

  std::unique_ptr<Wire> wire_;
  // Sums under way; a deque keeps their addresses. Emptied when nothing is under way any more.
  std::deque<std::uint32_t> sums_;
  const Op* op_ = nullptr;
};

}  // namespace smddp
