#include "transport/control.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace smddp {
namespace {

struct Notice {
  std::int32_t kind = 0;
  std::uint32_t length = 0;
};

// Longer reasons are cut: a notice must fit the empty socket buffer, because it is sent without waiting.
constexpr std::size_t kMaxReason = 1024;

constexpr std::chrono::milliseconds kLookInterval{1};

}  // namespace

Control::Control(int rank, Peers peers) : rank_(rank) {
  for (auto& [peer, socket] : peers) peers_[peer].socket = std::move(socket);
}

void Control::record(ErrorKind kind, const std::string& message) {
  if (raised_) return;
  kind_ = kind;
  message_ = without_name(message);
  raised_.store(true, std::memory_order_release);
  // Relayed by everyone who learns of it: a peer may not be connected to the rank where it began.
  const bool relayed = message_.rfind("reported by", 0) == 0;
  const std::string text =
      (relayed ? message_ : "reported by rank " + std::to_string(rank_) + ": " + message_).substr(0, kMaxReason);
  Notice notice;
  notice.kind = static_cast<std::int32_t>(kind);
  notice.length = static_cast<std::uint32_t>(text.size());
  std::string bytes(sizeof(notice), '\0');
  std::memcpy(bytes.data(), &notice, sizeof(notice));
  bytes += text;
  for (auto& [peer, state] : peers_)
    if (!state.closed) ::send(state.socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Control::raise(ErrorKind kind, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record(kind, message);
}

void Control::parse(int rank, Peer& peer) {
  Notice notice;
  if (peer.received.size() < sizeof(notice)) return;
  std::memcpy(&notice, peer.received.data(), sizeof(notice));
  if (notice.length > kMaxReason) {
    record(ErrorKind::system, "smddp: rank " + std::to_string(rank) + " sent an unreadable notice");
    return;
  }
  if (peer.received.size() < sizeof(notice) + notice.length) return;
  record(static_cast<ErrorKind>(notice.kind), peer.received.substr(sizeof(notice), notice.length));
}

void Control::read_from(int rank, Peer& peer) {
  char buffer[512];
  while (!peer.closed) {
    const ssize_t n = ::recv(peer.socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) {
      peer.received.append(buffer, static_cast<std::size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    } else {
      peer.closed = true;
    }
  }
  parse(rank, peer);
}

void Control::look() {
  looked_ = Deadline::Clock::now();
  for (auto& [rank, peer] : peers_)
    if (!peer.closed) read_from(rank, peer);
}

void Control::check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  look();
  if (raised_) throw_error(kind_, message_);
}

void Control::check_now_and_then(Deadline::Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (now - looked_ >= kLookInterval) look();
  if (raised_) throw_error(kind_, message_);
}

std::string Control::reason() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return raised_ ? with_name(message_) : "";
}

void Control::set_awaited(std::uint64_t sequence, std::vector<int> ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = {sequence, std::move(ranks)};
}

Awaited Control::awaited() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return awaited_;
}

bool Control::closed(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(rank);
  return entry != peers_.end() && entry->second.closed;
}

void Control::settle(std::chrono::milliseconds patience) {
  const Deadline deadline(patience);
  std::vector<pollfd> entries;
  while (!deadline.passed()) {
    check();
    entries.clear();
    append_to(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(deadline.left(patience).count()));
  }
  check();
}

void Control::append_to(std::vector<pollfd>& entries) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [rank, peer] : peers_)
    if (!peer.closed) entries.push_back({peer.socket.fd(), POLLIN, 0});
}

}  // namespace smddp
