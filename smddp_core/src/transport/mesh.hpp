// The wire over TCP: one or more connections (streams) to every peer, all of them moved by one poll loop on the calling
// thread.
//
// Where there are several streams, a piece of at least kStripeFloor bytes is cut into one part a stream, the same way
// on both ends, so that nothing but data travels; smaller ones use the first stream.
//
// A rank that is done early would otherwise give its link to the next operation's data for ranks that cannot use them
// yet, while a third one waits for what is still in its socket: sends to a peer that is on hold are limited.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "transport/control.hpp"
#include "transport/wire.hpp"

namespace smddp {

class Mesh final : public Wire {
 public:
  /// Below this, a part would be smaller than what a socket moves at once.
  static constexpr std::size_t kStripeFloor = std::size_t{128} << 10;

  /// @param streams connected non-blocking sockets by rank, the same number for every peer and the same order on both
  /// ends. @param control outlives the mesh. @param local_ranks ranks on this host: if
  /// they have a core each, a rank looks for data for some 50 us before it sleeps, unless it comes slowly.
  Mesh(std::vector<Peers> streams, Control& control, int local_ranks);

  void send(int peer, const void* data, std::size_t bytes, Done done = {}) override;
  void recv(int peer, void* data, std::size_t bytes, Done done = {}) override;
  void hold(const std::vector<int>& peers) override;
  void release(int peer) override;
  void progress(const Op& op) override;
  void wait(const Op& op) override;
  bool idle() const override { return posted_ == 0; }

 private:
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  /// A piece that was posted; complete when all its parts are.
  struct Piece {
    int parts;
    Done done;
  };
  struct Part {
    char* data;
    std::size_t bytes;
    Piece* piece;
  };
  /// What one direction of a connection still has to move.
  using Queue = std::deque<Part>;
  struct Stream {
    Socket socket;
    Queue sends;
    Queue receives;
    std::size_t allowed = kUnlimited;  // bytes to send before release()
    int low_water = 1;                 // SO_RCVLOWAT: bytes that must be there for poll() to wake up
  };
  struct Peer {
    std::vector<Stream> streams;
    std::deque<Piece> sends;
    std::deque<Piece> receives;
  };

  Peer& peer(int rank);
  void post(Peer& peer, Queue Stream::* queue, std::deque<Piece> Peer::* pieces, void* data, std::size_t bytes,
            Done done);
  bool push(const Op& op, int rank, Peer& peer, Stream& stream);
  bool pull(const Op& op, int rank, Peer& peer, Stream& stream);
  void advance(Queue& queue, std::deque<Piece>& pieces, std::size_t bytes);
  bool try_all(const Op& op);
  /// Whether what came of late came too fast to sleep between.
  bool comes_fast() const;
  bool spin(const Op& op);
  void sleep(const Op& op);
  void list_wanted();
  void set_low_water(Stream& stream);
  void move_ready(const Op& op);
  void check_waiting(const Op& op);
  void lost(const Op& op, int rank, int error_number);
  /// The peers of the last poll.
  std::vector<int> unfinished() const;

  struct Polled {
    int rank;
    Peer* peer;
    Stream* stream;
  };

  std::map<int, Peer> peers_;
  Control& control_;
  const int spins_;
  std::vector<pollfd> entries_;
  std::vector<Polled> polled_;
  std::size_t sockets_ = 0;
  bool nothing_came_ = false;       // since something is expected
  std::uint64_t received_ = 0;      // bytes, ever
  double recent_bytes_ = 0;         // that came in the last waits, recent ones first,
  double recent_seconds_ = 0;       // and how long these took
  std::size_t posted_ = 0;          // pieces that are not complete
  std::size_t bytes_expected_ = 0;  // of those, bytes to receive
  // Since nothing was expected:
  std::size_t most_expected_ = 0;      // at once
  std::size_t to_send_meanwhile_ = 0;  // bytes posted
};

}  // namespace smddp
