// TCP between ranks: ordered byte streams to every peer, all of them moved at once by one poll loop on the calling
// thread.
//
// There are no tags: what a rank posts to receive from a peer must be what that peer posts to send, in the same order.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "op.hpp"
#include "transport/control.hpp"

namespace smddp {

class Mesh {
 public:
  /// @param peers connected non-blocking sockets by rank. @param control outlives the mesh.
  Mesh(Peers peers, Control& control);

  /// Appends `bytes` bytes at `data` to what is sent to `peer`. The memory must stay as it is until run() returns.
  void send(int peer, const void* data, std::size_t bytes);

  /// Appends a piece to what is received from `peer`. `done` is called from run() when it is complete, and may post
  /// more.
  void recv(int peer, void* data, std::size_t bytes, std::function<void()> done = {});

  /// Moves everything that was posted.
  /// @throws TimeoutError, PeerError, whatever Control::check() or a `done` throws; the mesh cannot be used afterwards.
  void run(const Op& op);

 private:
  struct Outgoing {
    const char* data;
    std::size_t bytes;
  };
  struct Incoming {
    char* data;
    std::size_t bytes;
    std::function<void()> done;
  };
  struct Peer {
    Socket socket;
    std::deque<Outgoing> sends;
    std::deque<Incoming> receives;
  };

  Peer& peer(int rank);
  void push(const Op& op, int rank, Peer& peer);
  void pull(const Op& op, int rank, Peer& peer);
  void lost(const Op& op, int rank);
  void wait_ready(const Op& op);

  std::map<int, Peer> peers_;
  Control& control_;
  std::vector<pollfd> entries_;
  std::vector<std::pair<int, Peer*>> polled_;
  std::size_t posted_ = 0;
};

}  // namespace smddp
