#include "transport/socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// Descriptors to close in a forked child. Leaked on purpose: sockets may outlive static destructors.
struct ForkRegistry {
  std::mutex mutex;
  std::vector<int> open;
};

ForkRegistry& registry() {
  static ForkRegistry* instance = [] {
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     for (const int fd : registry().open) ::close(fd);
                     registry().open.clear();
                     registry().mutex.unlock();
                   });
    return new ForkRegistry;
  }();
  return *instance;
}

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address parse(const std::string& text, int port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<std::uint16_t>(port));
    address.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<std::uint16_t>(port));
    address.length = sizeof(*v6);
  } else {
    throw UsageError("smddp: '" + text + "' is not a numeric address");
  }
  return address;
}

Socket make_socket(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw_system("socket", errno);
  return Socket(fd);
}

void tune(const Socket& socket) {
  const int on = 1;
  // Small messages must not wait for an acknowledgement of the previous ones.
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  // A host that vanishes without a FIN: first probe after 5 s, then each second, and unacknowledged data is given up in
  // 10 s.
  const int idle = 5;
  const int probes = 5;
  const int unacknowledged_ms = 10'000;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof(on));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.left(std::chrono::milliseconds(100)).count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_system("poll", errno);
    if (deadline.passed()) return false;
  }
}

// One attempt; an empty Socket when refused.
Socket try_connect(const Address& address, const Deadline& deadline) {
  Socket socket = make_socket(address.storage.ss_family);
  if (::connect(socket.fd(), address.get(), address.length) == 0) return socket;
  if (errno != EINPROGRESS) return {};
  if (!wait_for(socket.fd(), POLLOUT, deadline)) return {};
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? std::move(socket) : Socket();
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().open.push_back(fd);
}

void Socket::close() {
  if (fd_ < 0) return;
  const std::lock_guard<std::mutex> lock(registry().mutex);
  auto& open = registry().open;
  open.erase(std::remove(open.begin(), open.end(), fd_), open.end());
  ::close(fd_);
  fd_ = -1;
}

std::pair<Socket, int> listen_on(const std::string& text) {
  Address address = parse(text, 0);
  Socket socket = make_socket(address.storage.ss_family);
  if (::bind(socket.fd(), address.get(), address.length) != 0) throw_system("bind to " + text, errno);
  if (::listen(socket.fd(), SOMAXCONN) != 0) throw_system("listen on " + text, errno);
  address.length = sizeof(address.storage);
  if (::getsockname(socket.fd(), address.get(), &address.length) != 0) throw_system("getsockname", errno);
  const bool v4 = address.storage.ss_family == AF_INET;
  const auto port = v4 ? reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port
                       : reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port;
  return {std::move(socket), ntohs(port)};
}

Socket connect_to(const std::string& text, int port, const Deadline& deadline) {
  const Address address = parse(text, port);
  for (;;) {
    Socket socket = try_connect(address, deadline);
    if (socket.open()) {
      tune(socket);
      return socket;
    }
    if (deadline.passed())
      throw TimeoutError("smddp: cannot connect to " + text + " port " + std::to_string(port) +
                         " (a firewall between the hosts, or the wrong interface? see SMDDP_SOCKET_IFNAME)");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Socket accept_from(const Socket& listener, const Deadline& deadline) {
  for (;;) {
    if (!wait_for(listener.fd(), POLLIN, deadline)) return {};
    const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Socket socket(fd);
      tune(socket);
      return socket;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) throw_system("accept", errno);
  }
}

void set_buffers(const Socket& socket, std::size_t bytes) {
  if (bytes == 0) return;
  const int wanted = static_cast<int>(std::min<std::size_t>(bytes, 1 << 30));
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &wanted, sizeof(wanted));
}

bool send_all(const Socket& socket, const void* data, std::size_t bytes, const Deadline& deadline) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(socket.fd(), at, bytes, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.fd(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool recv_all(const Socket& socket, void* data, std::size_t bytes, const Deadline& deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(socket.fd(), at, bytes, 0);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_for(socket.fd(), POLLIN, deadline)) return false;
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace smddp
