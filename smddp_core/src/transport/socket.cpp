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

Socket start_connect(const std::string& text, int port) {
  const Address address = parse(text, port);
  Socket socket = make_socket(address.storage.ss_family);
  tune(socket);
  if (::connect(socket.fd(), address.get(), address.length) == 0 || errno == EINPROGRESS) return socket;
  const int error_number = errno;
  socket.close();
  errno = error_number;
  return {};
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

Socket accept_from(const Socket& listener) {
  const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    // What went wrong with one connection alone is that one's misfortune.
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return {};
    throw_system("accept", errno);
  }
  Socket socket(fd);
  tune(socket);
  return socket;
}

// Data that is sent is given up by TCP_USER_TIMEOUT; a connection that only waits is probed three times.
void set_link_timeout(const Socket& socket, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kMost{std::chrono::hours(24)};  // the kernel takes 32767 s between probes
  const int whole_ms = static_cast<int>(std::min(timeout, kMost).count());
  const int on = 1;
  const int third = std::max(whole_ms / 3000, 1);
  const int probes = 2;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof(third));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof(third));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &whole_ms, sizeof(whole_ms));
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
