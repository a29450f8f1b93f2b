// Owned TCP sockets and how they are made. Data moves in mesh.cpp, not here.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "smddp/deadline.hpp"

namespace smddp {

/// Owns a file descriptor. Open ones are closed in the child of a fork (DataLoader workers): a copy there would keep
/// the connection alive after this process was killed, and the peers would never learn of its death.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

/// A listener on a free port of `address` (numeric IPv4 or IPv6), and that port.
std::pair<Socket, int> listen_on(const std::string& address);

/// Begins to connect: the socket is writable once that has succeeded or failed, see connect_error(). An empty Socket,
/// with errno set, when it failed at once. The socket is non-blocking with TCP_NODELAY.
Socket start_connect(const std::string& address, int port);

/// 0 when the connection stands, else the errno value of its failure.
int connect_error(const Socket& socket);

/// Next connection of a listener, made like start_connect()'s. An empty Socket when none is waiting.
Socket accept_from(const Socket& listener);

/// How long the other end may stay silent (data unacknowledged, or probes unanswered) before the connection is given
/// up. At least a second.
void set_link_timeout(const Socket& socket, std::chrono::milliseconds timeout);

/// Fixes the sizes of a connection's buffers; 0 leaves them to the system.
void set_buffers(const Socket& socket, std::size_t bytes);

/// Sends or receives exactly `bytes` bytes. False when the peer closed or the deadline passed.
bool send_all(const Socket& socket, const void* data, std::size_t bytes, const Deadline& deadline);
bool recv_all(const Socket& socket, void* data, std::size_t bytes, const Deadline& deadline);

}  // namespace smddp
