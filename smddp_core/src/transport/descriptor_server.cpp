#include "transport/descriptor_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// How often the thread looks whether it should end.
constexpr int kLookMilliseconds = 20;
// A client of this host that sends less than the nonce in this time is not one of ours.
constexpr std::chrono::milliseconds kGreetingPatience{1000};

struct LocalAddress {
  sockaddr_un socket{};
  socklen_t bytes = 0;
};

// An abstract name starts with a zero byte and ends with the length, not with a zero.
LocalAddress local_address(const std::string& name) {
  LocalAddress address;
  address.socket.sun_family = AF_UNIX;
  name.copy(address.socket.sun_path + 1, sizeof(address.socket.sun_path) - 1);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Socket make_socket() {
  Socket made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.open()) throw_system("socket(AF_UNIX)", errno);
  return made;
}

// One byte of data with the descriptor as ancillary message; see unix(7), SCM_RIGHTS.
struct Message {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  Message() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

bool same_user(const Socket& client) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(client.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::geteuid();
}

}  // namespace

DescriptorServer::DescriptorServer(int fd, const Nonce& nonce)
    : shared_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), nonce_(nonce) {
  const Nonce random = make_nonce();
  name_ = "smddp-" + std::string(random.begin(), random.end());
  listener_ = make_socket();
  const LocalAddress address = local_address(name_);
  if (::bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&address.socket), address.bytes) != 0 ||
      ::listen(listener_.fd(), SOMAXCONN) != 0)
    throw_system("bind or listen on the abstract socket " + name_, errno);
  thread_ = std::thread([this] { serve(); });
  ::pthread_setname_np(thread_.native_handle(), "smddp-segment");
}

DescriptorServer::~DescriptorServer() {
  stopping_ = true;
  thread_.join();
}

void DescriptorServer::serve() {
  while (!stopping_) {
    pollfd entry{listener_.fd(), POLLIN, 0};
    if (::poll(&entry, 1, kLookMilliseconds) <= 0) continue;
    const Socket client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client.open() && same_user(client)) answer(client);
  }
}

void DescriptorServer::answer(const Socket& client) {
  Nonce theirs{};
  if (!recv_all(client, theirs.data(), theirs.size(), Deadline(kGreetingPatience)) || theirs != nonce_) return;
  Message message;
  cmsghdr* part = CMSG_FIRSTHDR(&message.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = shared_.fd();
  std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  // One byte fits the buffer of a fresh connection; a client that gets nothing reports it.
  static_cast<void>(::sendmsg(client.fd(), &message.header, MSG_NOSIGNAL));
}

int receive_descriptor(const std::string& name, const Nonce& nonce, const Deadline& deadline) {
  const Socket server = make_socket();
  const LocalAddress address = local_address(name);
  // A full queue of the listener is EAGAIN: others are before us.
  while (::connect(server.fd(), reinterpret_cast<const sockaddr*>(&address.socket), address.bytes) != 0) {
    if ((errno != EAGAIN && errno != EINTR) || deadline.passed())
      throw_system("connect to the abstract socket " + name, errno);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!send_all(server, nonce.data(), nonce.size(), deadline))
    throw Error(ErrorKind::system, "smddp: the abstract socket " + name + " was closed");
  pollfd entry{server.fd(), POLLIN, 0};
  while (::poll(&entry, 1, static_cast<int>(deadline.left(std::chrono::seconds(1)).count())) <= 0)
    if (deadline.passed()) throw TimeoutError("smddp: no descriptor came over the abstract socket " + name);
  Message message;
  const ssize_t received = ::recvmsg(server.fd(), &message.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* part = received == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (!part || part->cmsg_type != SCM_RIGHTS)
    throw Error(ErrorKind::system, "smddp: no descriptor came over the abstract socket " + name);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(part), sizeof(int));
  return fd;
}

}  // namespace smddp
