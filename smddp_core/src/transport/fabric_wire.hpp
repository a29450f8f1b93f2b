// The wire over libfabric's reliable-datagram endpoints.
//
// The network may deliver out of order (EFA's SRD does), so order is kept by numbers: each direction between two ranks
// is one stream, cut into messages the same way on both ends, and the tag of a message is
//
//   16 bits of the group's nonce | 20 bits sender's rank | 28 bits number of the message in its stream
//
// Numbers wrap; a few messages at most are under way, so that no two of them are equal. Receives are posted ahead, so
// that large messages land in place, and completions are reported in the order of posting.
//
// A provider keeps pointers into the caller's memory until an operation completes. Where one cannot be waited for (an
// error, an abort), the endpoint is closed at once, which ends all of them: abandon().
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective/tier.hpp"
#include "transport/fabric_endpoint.hpp"

namespace smddp {

class FabricWire final : public Wire {
 public:
  FabricWire(std::unique_ptr<FabricEndpoint> endpoint, int rank, const std::map<int, std::string>& addresses,
             const Nonce& nonce, Control& control, const FabricPace& pace);
  ~FabricWire() override { abandon(); }

  void send(int peer, const void* data, std::size_t bytes, Done done = {}) override;
  void recv(int peer, void* data, std::size_t bytes, Done done = {}) override;
  void progress(const Op& op) override;
  void wait(const Op& op) override;
  bool idle() const override { return posted_ == 0; }
  void abandon() override;

  /// Ranks with which something that was posted has not moved yet.
  std::vector<int> pending() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Piece {
    char* data;
    std::size_t bytes;
    std::size_t started = 0;   ///< Bytes handed to the provider.
    std::size_t finished = 0;  ///< Bytes it has reported complete.
    std::string fault;         ///< What was wrong with a message, told when it is this piece's turn.
    Done done;
  };
  /// One direction of a peer.
  struct Stream {
    std::deque<Piece> pieces;
    std::size_t started = 0;  ///< Pieces at the front that are handed over entirely.
    std::uint64_t next = 0;   ///< Number of the next message.
    int under_way = 0;
  };
  struct Peer {
    int rank = 0;
    fi_addr_t handle = FI_ADDR_UNSPEC;
    Stream sends;
    Stream receives;
    /// Since when its control connection is closed and nothing has come from it.
    Clock::time_point gone_since{};
  };
  /// One operation in the provider's hands. Its address is the operation's context, so `context` comes first.
  struct Slot {
    fi_context2 context{};
    Peer* peer = nullptr;
    Piece* piece = nullptr;
    char* data = nullptr;
    std::size_t bytes = 0;
    bool receiving = false;
    char* bounce = nullptr;
  };

  Peer& peer(int rank);
  void post(Stream& stream, void* data, std::size_t bytes, Done done);
  std::uint64_t tag(int from, std::uint64_t number) const;
  void make_slots(std::size_t count, bool bounce);

  template <class Body>
  void guarded(Body body);
  bool turn(const Op& op);
  void start(const Op& op, Peer& peer, bool receiving);
  bool start_one(const Op& op, Peer& peer, Stream& stream, bool receiving);
  bool drain(const Op& op);
  void finish(Slot& slot, std::size_t bytes, const std::string& fault);
  void fail(const Op& op, const fi_cq_err_entry& entry);
  void deliver(const Op& op, Peer& peer, Stream& stream);
  bool look(const Op& op);
  bool nap(const Op& op);
  void check_waiting(const Op& op, bool urgent);
  [[noreturn]] void lost(const Op& op, int rank, const std::string& reason);

  std::shared_ptr<FabricDomain> domain_;  ///< Outlives the registration, which outlives the endpoint.
  std::unique_ptr<FabricEndpoint> endpoint_;
  const int rank_;
  std::uint64_t mark_ = 0;  ///< The nonce's share of a tag.
  Control& control_;
  std::size_t segment_bytes_;
  int window_;
  const int spins_;
  std::map<int, Peer> peers_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  Scratch bounce_;
  FabricObject<fid_mr> registration_;
  Clock::time_point checked_{};
  std::vector<pollfd> entries_;
  int idle_turns_ = 0;
  std::size_t posted_ = 0;  ///< Pieces that are not complete.
};

}  // namespace smddp
