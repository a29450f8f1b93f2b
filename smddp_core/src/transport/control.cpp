#include "transport/control.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace smddp {
namespace {

constexpr std::chrono::milliseconds kLookInterval{1};

// Bytes on their way to a peer above which hints are left out: what tells it of a failure must still fit behind them.
constexpr int kMostOnTheWay = 8 * 1024;

// How long blame() waits for answers: a rank that waits looks at its control plane many times in this time.
constexpr std::chrono::milliseconds kAnswerPatience{300};

// A process that ends without a farewell may have done its part: what it has sent is given so long to arrive.
constexpr std::chrono::seconds kGrace{2};

int bytes_on_the_way(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.fd(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

Socket make_epoll() {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) throw_system("epoll_create1", errno);
  return Socket(fd);
}

}  // namespace

Control::Control(int rank, std::vector<int> job_ranks)
    : rank_(rank), job_ranks_(std::move(job_ranks)), readable_(make_epoll()) {}

void Control::add(int rank, Socket socket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(rank);
  if (::epoll_ctl(readable_.fd(), EPOLL_CTL_ADD, socket.fd(), &event) != 0) throw_system("epoll_ctl", errno);
  Peer fresh;
  fresh.socket = std::move(socket);
  peers_[rank] = std::move(fresh);
}

void Control::set_link_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [rank, peer] : peers_) smddp::set_link_timeout(peer.socket, timeout);
}

// Without waiting. What does not fit is kept: half a notice would make all that follow it unreadable.
void Control::send(Peer& peer, const Notice& notice) {
  if (peer.closed) return;
  peer.unsent += to_bytes(notice);
  flush(peer);
}

void Control::flush(Peer& peer) {
  const ssize_t n = ::send(peer.socket.fd(), peer.unsent.data(), peer.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) peer.unsent.erase(0, static_cast<std::size_t>(n));
  if (!peer.unsent.empty()) owing_ = true;
}

// Where the peer does not read, those that follow may be left out.
void Control::hint(Peer& peer, const Notice& notice) {
  if (peer.unsent.empty() && bytes_on_the_way(peer.socket) < kMostOnTheWay) send(peer, notice);
}

void Control::record(ErrorKind kind, const std::string& message) {
  if (raised_) return;
  kind_ = kind;
  message_ = without_name(message);
  raised_.store(true, std::memory_order_release);
  // Relayed by everyone who learns of it: a peer may not be connected to the rank where it began.
  const bool relayed = message_.rfind("reported by", 0) == 0;
  Notice notice;
  notice.kind = kind;
  notice.text = relayed ? message_ : "reported by " + name(rank_) + ": " + message_;
  for (auto& [rank, peer] : peers_) send(peer, notice);
}

void Control::raise(ErrorKind kind, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record(kind, message);
}

void Control::take(Peer& peer, const Notice& notice) {
  switch (notice.type) {
    case Notice::Type::failure:
      record(notice.kind, notice.text);
      break;
    case Notice::Type::query:
      answer(peer);
      break;
    case Notice::Type::answer:
      peer.answer = notice.awaited;
      break;
    case Notice::Type::farewell:
      peer.left = notice.last;
      peer.farewell = notice.text;
      break;
    case Notice::Type::message:
      take_message(notice);
      break;
  }
}

// Who waits for nobody has no answer: others wait for it.
void Control::answer(Peer& peer) {
  if (!waiting_ && awaited_peers_.empty()) return;
  Notice notice;
  notice.type = Notice::Type::answer;
  notice.awaited = waiting_ ? awaited_ : Awaited{0, {awaited_peers_.begin(), awaited_peers_.end()}};
  send(peer, notice);
}

void Control::close(Peer& peer, int error_number) {
  peer.closed = true;
  peer.closed_at = Deadline::Clock::now();
  peer.error_number = error_number;
  ::epoll_ctl(readable_.fd(), EPOLL_CTL_DEL, peer.socket.fd(), nullptr);
}

void Control::read_from(int rank, Peer& peer) {
  char buffer[16384];
  const ssize_t n = ::recv(peer.socket.fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return close(peer, n < 0 ? errno : 0);
  peer.reader.feed(buffer, static_cast<std::size_t>(n));
  try {
    while (const auto notice = peer.reader.next()) take(peer, *notice);
  } catch (const Error& error) {
    close(peer, EPROTO);
    record(ErrorKind::system, name(rank) + " sent " + without_name(error.what()));
  }
}

// What is left unread is found by the next epoll_wait().
void Control::look() {
  looked_.store(Deadline::Clock::now(), std::memory_order_relaxed);
  if (std::exchange(owing_, false))
    for (auto& [rank, peer] : peers_)
      if (!peer.unsent.empty() && !peer.closed) flush(peer);
  epoll_event events[64];
  for (int ready = 64; ready == 64;) {
    ready = ::epoll_wait(readable_.fd(), events, 64, 0);
    for (int i = 0; i < ready; ++i) {
      const int rank = static_cast<int>(events[i].data.u32);
      read_from(rank, peers_.at(rank));
    }
  }
}

void Control::check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  look();
  if (raised_) throw_error(kind_, message_);
}

void Control::refresh() {
  const std::lock_guard<std::mutex> lock(mutex_);
  look();
}

// One that died is named before one that left too early: it may have left because of that death. With the lock held.
template <class Early>
std::optional<Loss> Control::missing(bool at_once, Early early) const {
  const auto now = Deadline::Clock::now();
  std::optional<int> dead;
  std::optional<int> left;
  bool sure = false;
  for (const auto& [rank, peer] : peers_) {
    if (peer.closed && !peer.left) {
      if (!dead || peer.closed_at < peers_.at(*dead).closed_at) dead = rank;
      sure = sure || at_once || now - peer.closed_at > kGrace;
    } else if (peer.left && early(*peer.left)) {
      left = rank;
    }
  }
  if (!sure && !left) return std::nullopt;
  const int rank = dead ? *dead : *left;
  return loss_of(rank);
}

void Control::check(const Op& op) {
  check();
  std::optional<Loss> gone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    gone = missing(false, [&](std::uint64_t last) { return last < op.header.sequence; });
  }
  if (gone) throw_peer_closed(op, gone->rank, gone->how);
}

std::optional<Loss> Control::gone(bool at_once) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return missing(at_once, [](std::uint64_t) { return false; });
}

std::vector<int> Control::dead() {
  const std::lock_guard<std::mutex> lock(mutex_);
  look();
  std::vector<int> ranks;
  for (const auto& [rank, peer] : peers_)
    if (peer.closed && !peer.left) ranks.push_back(rank);
  return ranks;
}

std::optional<Loss> Control::all_gone(int others) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool all = peers_.size() == static_cast<std::size_t>(others) &&
                   std::all_of(peers_.begin(), peers_.end(),
                               [](const auto& entry) { return entry.second.closed || entry.second.left; });
  if (!all || peers_.empty()) return std::nullopt;
  return loss_of(peers_.begin()->first);
}

void Control::leave(std::uint64_t last, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Notice notice;
  notice.type = Notice::Type::farewell;
  notice.last = last;
  notice.text = reason;
  for (auto& [rank, peer] : peers_) send(peer, notice);
}

void Control::check_now_and_then(Deadline::Clock::time_point now) {
  const bool recent = now - looked_.load(std::memory_order_relaxed) < kLookInterval;
  if (recent && !raised_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!recent) look();
  if (raised_) throw_error(kind_, message_);
}

std::string Control::reason() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return raised_ ? with_name(message_) : "";
}

void Control::set_awaited(std::uint64_t sequence, std::vector<int> ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = {sequence, std::move(ranks)};
  waiting_ = true;
}

Awaited Control::awaited() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return awaited_;
}

void Control::forget_awaited() {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_ = false;
}

bool Control::closed(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(rank);
  return entry != peers_.end() && entry->second.closed;
}

std::optional<Loss> Control::lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [rank, peer] : peers_)
    if (peer.closed) return loss_of(rank);
  return std::nullopt;
}

Loss Control::loss_of(int rank) const {
  const Peer& peer = peers_.at(rank);
  return {rank, loss_text(peer.error_number, peer.farewell)};
}

std::string Control::how_lost(int rank, int error_number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = peers_.find(rank);
  if (entry == peers_.end()) return loss_text(error_number, "");
  return loss_text(error_number == 0 ? entry->second.error_number : error_number, entry->second.farewell);
}

bool Control::all_answered(const std::vector<int>& asked) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(asked.begin(), asked.end(), [&](int rank) {
    const auto entry = peers_.find(rank);
    return entry == peers_.end() || entry->second.closed || entry->second.answer;
  });
}

// Whom they wait for, and gives them a moment to answer.
void Control::ask(const std::vector<int>& some) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Notice query;
    query.type = Notice::Type::query;
    for (const int rank : some) {
      const auto entry = peers_.find(rank);
      if (entry == peers_.end()) continue;
      entry->second.answer.reset();
      send(entry->second, query);
    }
  }
  const Deadline patience(kAnswerPatience);
  while (!all_answered(some) && !patience.passed()) {
    pollfd news{readable_.fd(), POLLIN, 0};
    ::poll(&news, 1, static_cast<int>(patience.left(kAnswerPatience).count()));
    check();
  }
}

std::vector<int> Control::silent() {
  std::vector<int> asked;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [rank, peer] : peers_)
      if (!peer.closed) asked.push_back(rank);
  }
  ask(asked);
  std::vector<int> ranks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::copy_if(asked.begin(), asked.end(), std::back_inserter(ranks),
                 [&](int rank) { return !peers_.at(rank).answer; });
  }
  // A rank that this one is not connected to, then: others are.
  if (ranks.empty()) settle(kAnswerPatience);
  return ranks;
}

std::vector<int> Control::blame(const std::vector<int>& missing) {
  ask(missing);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<int> guilty;
  for (const int rank : missing) {
    const auto entry = peers_.find(rank);
    std::set<int> named;
    if (entry != peers_.end() && entry->second.answer)
      for (const int other : entry->second.answer->ranks)
        if (other != rank_) named.insert(other);
    if (named.empty()) named.insert(rank);
    guilty.insert(named.begin(), named.end());
  }
  // A rank that another one names, but that answers that it waits itself, is not the cause.
  const auto excused = [&](int rank) {
    const auto entry = peers_.find(rank);
    return guilty.size() > 1 && entry != peers_.end() && entry->second.answer;
  };
  std::vector<int> ranks;
  std::copy_if(guilty.begin(), guilty.end(), std::back_inserter(ranks), [&](int rank) { return !excused(rank); });
  return ranks.empty() ? missing : ranks;
}

void Control::settle(std::chrono::milliseconds patience) {
  const Deadline deadline(patience);
  while (!deadline.passed()) {
    check();
    pollfd news{readable_.fd(), POLLIN, 0};
    ::poll(&news, 1, static_cast<int>(deadline.left(patience).count()));
  }
  check();
}

void Control::append_to(std::vector<pollfd>& entries) const { entries.push_back({readable_.fd(), POLLIN, 0}); }

}  // namespace smddp
