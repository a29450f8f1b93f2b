// The wire over TCP: one connection to every peer, all of them moved at once by one poll loop on the calling thread.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "transport/control.hpp"
#include "transport/wire.hpp"

namespace smddp {

class Mesh final : public Wire {
 public:
  /// @param peers connected non-blocking sockets by rank. @param control outlives the mesh.
  Mesh(Peers peers, Control& control);

  void send(int peer, const void* data, std::size_t bytes) override;
  void recv(int peer, void* data, std::size_t bytes, std::function<void()> done = {}) override;
  void progress(const Op& op) override;
  void wait(const Op& op) override;
  bool idle() const override { return posted_ == 0; }

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
  void poll_ready(const Op& op);

  std::map<int, Peer> peers_;
  Control& control_;
  std::vector<pollfd> entries_;
  std::vector<std::pair<int, Peer*>> polled_;
  std::size_t posted_ = 0;
};

}  // namespace smddp
