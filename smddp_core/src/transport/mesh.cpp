#include "transport/mesh.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// One peer may take this much of a turn, so that no peer's stream waits for another's whole backlog.
constexpr std::size_t kTurn = std::size_t{256} << 10;

// How long poll() sleeps at most: abort() from another thread is seen this late at worst.
constexpr std::chrono::milliseconds kNap{20};

// How long the first explanation of a failure may take to arrive before a lost connection is reported as such.
constexpr std::chrono::milliseconds kPatience{200};

}  // namespace

Mesh::Mesh(Peers peers, Control& control) : control_(control) {
  for (auto& [rank, socket] : peers) peers_[rank].socket = std::move(socket);
}

Mesh::Peer& Mesh::peer(int rank) {
  const auto entry = peers_.find(rank);
  if (entry == peers_.end()) throw UsageError("smddp: no connection to rank " + std::to_string(rank));
  return entry->second;
}

void Mesh::send(int rank, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  peer(rank).sends.push_back({static_cast<const char*>(data), bytes});
  ++posted_;
}

void Mesh::recv(int rank, void* data, std::size_t bytes, std::function<void()> done) {
  if (bytes == 0) return;
  peer(rank).receives.push_back({static_cast<char*>(data), bytes, std::move(done)});
  ++posted_;
}

void Mesh::lost(const Op& op, int rank) {
  control_.settle(kPatience);
  throw_peer_closed(op, rank);
}

void Mesh::push(const Op& op, int rank, Peer& peer) {
  std::size_t budget = kTurn;
  while (!peer.sends.empty() && budget > 0) {
    Outgoing& head = peer.sends.front();
    const ssize_t n = ::send(peer.socket.fd(), head.data, std::min(head.bytes, budget), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      lost(op, rank);
    }
    const auto sent = static_cast<std::size_t>(n);
    budget -= sent;
    head.data += sent;
    head.bytes -= sent;
    if (head.bytes == 0) {
      peer.sends.pop_front();
      --posted_;
    }
  }
}

void Mesh::pull(const Op& op, int rank, Peer& peer) {
  std::size_t budget = kTurn;
  while (!peer.receives.empty() && budget > 0) {
    Incoming& head = peer.receives.front();
    const ssize_t n = ::recv(peer.socket.fd(), head.data, std::min(head.bytes, budget), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) lost(op, rank);
    const auto received = static_cast<std::size_t>(n);
    budget -= received;
    head.data += received;
    head.bytes -= received;
    if (head.bytes > 0) continue;
    const auto done = std::move(head.done);
    peer.receives.pop_front();
    --posted_;
    if (done) done();
  }
}

void Mesh::poll_ready(const Op& op) {
  entries_.clear();
  polled_.clear();
  for (auto& [rank, peer] : peers_) {
    const int events = (peer.sends.empty() ? 0 : POLLOUT) | (peer.receives.empty() ? 0 : POLLIN);
    if (events == 0) continue;
    entries_.push_back({peer.socket.fd(), static_cast<short>(events), 0});
    polled_.emplace_back(rank, &peer);
  }
  control_.append_to(entries_);
  const int ready = ::poll(entries_.data(), entries_.size(), static_cast<int>(op.deadline.left(kNap).count()));
  if (ready < 0 && errno != EINTR) throw_system("poll", errno);
  const auto woken = [](const pollfd& entry) { return entry.revents != 0; };
  const auto control_begin = entries_.begin() + static_cast<std::ptrdiff_t>(polled_.size());
  if (ready == 0 || control_.raised() || std::any_of(control_begin, entries_.end(), woken)) control_.check();
  if (!op.deadline.passed()) return;
  std::vector<int> missing;
  for (const auto& [rank, peer] : polled_) missing.push_back(rank);
  throw_timeout(op, missing);
}

void Mesh::progress(const Op& op) {
  for (auto& [rank, peer] : peers_) {
    push(op, rank, peer);
    pull(op, rank, peer);
  }
}

void Mesh::wait(const Op& op) {
  poll_ready(op);
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    const auto [rank, peer] = polled_[i];
    const short events = entries_[i].revents;
    if (events & (POLLIN | POLLHUP | POLLERR)) pull(op, rank, *peer);
    if (events & (POLLOUT | POLLHUP | POLLERR)) push(op, rank, *peer);
  }
}

}  // namespace smddp
