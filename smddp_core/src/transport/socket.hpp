// Owned TCP sockets and the few blocking steps a handshake needs. Data moves in mesh.cpp, not here.
#pragma once

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

/// Connects, trying again while the peer refuses. The socket returned is non-blocking with TCP_NODELAY.
/// @throws TimeoutError at the deadline.
Socket connect_to(const std::string& address, int port, const Deadline& deadline);

/// Next connection of a listener, made like connect_to()'s. An empty Socket at the deadline.
Socket accept_from(const Socket& listener, const Deadline& deadline);

/// Fixes the sizes of a connection's buffers; 0 leaves them to the system.
void set_buffers(const Socket& socket, std::size_t bytes);

/// Sends or receives exactly `bytes` bytes. False when the peer closed or the deadline passed.
bool send_all(const Socket& socket, const void* data, std::size_t bytes, const Deadline& deadline);
bool recv_all(const Socket& socket, void* data, std::size_t bytes, const Deadline& deadline);

}  // namespace smddp
