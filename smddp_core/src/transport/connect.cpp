#include "transport/connect.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchInterval{100};  // how often watch() is called
constexpr milliseconds kRetryPause{20};      // between two calls to a rank
constexpr milliseconds kRefusals{3000};      // a rank that refuses for so long is gone
constexpr milliseconds kManners{5000};       // how long a stranger may take to introduce itself
constexpr std::size_t kMostGuests = 256;     // strangers at a time; the oldest goes first

template <class Message>
bool send_message(const Socket& socket, const Message& message) {
  // A few bytes always fit the empty buffer of a connection.
  return ::send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(message));
}

enum class Heard { all, part, closed };

// Reads on until `received` has the whole message, never beyond it: what follows may be data.
template <class Message>
Heard hear(const Socket& socket, std::string& received, Message& message) {
  char buffer[sizeof(Message)];
  const ssize_t n = ::recv(socket.fd(), buffer, sizeof(Message) - received.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::part;
  if (n <= 0) return Heard::closed;
  received.append(buffer, static_cast<std::size_t>(n));
  if (received.size() < sizeof(Message)) return Heard::part;
  std::memcpy(static_cast<void*>(&message), received.data(), sizeof(Message));
  received.clear();
  return Heard::all;
}

std::string name_of(const std::string& rank, const RankInfo& info) {
  return rank + " on " + info.name + " (" + info.address + " port " + std::to_string(info.port) + ")";
}

}  // namespace

Meeting::Meeting(const Socket& listener, int rank, std::vector<int> job_ranks, std::string key,
                 const Deadline& deadline, std::function<void()> watch)
    : listener_(listener),
      rank_(rank),
      job_ranks_(std::move(job_ranks)),
      key_(std::move(key)),
      deadline_(deadline),
      watch_(std::move(watch)) {}

void Meeting::call(Line line, const RankInfo& there) {
  calls_.emplace_back(line, there, Caller(key_, rank_, line.first, line.second));
}

bool Meeting::complete() const {
  return made_.size() == expected_.size() + calls_.size() &&
         std::all_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.step == Step::done; });
}

void Meeting::begin(Call& call) {
  call.socket = start_connect(call.there.address, call.there.port);
  if (!call.socket.open()) return retry(call, errno);
  call.step = Step::connecting;
}

void Meeting::retry(Call& call, int error_number) {
  const auto now = Deadline::Clock::now();
  call.step = Step::idle;
  call.socket.close();
  call.received.clear();
  call.again = now + kRetryPause;
  call.error_number = error_number;
  // A fresh challenge, in case somebody has listened.
  call.caller = Caller(key_, rank_, call.line.first, call.line.second);
  if (error_number != ECONNREFUSED) {
    call.refused_since = {};
  } else if (call.refused_since == Deadline::Clock::time_point{}) {
    call.refused_since = now;
  } else if (now - call.refused_since > kRefusals) {
    PeerError error(name_of(rank_name(call.line.first, job_ranks_), call.there) +
                    " refuses connections: its process ended, or a firewall is between the hosts");
    error.set_ranks({call.line.first});
    throw error;
  }
}

void Meeting::advance(Call& call) {
  if (call.step == Step::connecting) {
    if (const int error_number = connect_error(call.socket)) return retry(call, error_number);
    if (!send_message(call.socket, call.caller.hello())) return retry(call, EPIPE);
    call.step = Step::greeted;
  } else if (call.step == Step::greeted) {
    Reply reply;
    const Heard heard = hear(call.socket, call.received, reply);
    if (heard == Heard::closed) return retry(call, ECONNRESET);
    if (heard == Heard::part) return;
    const auto proof = call.caller.answer(reply);
    if (!proof)
      throw PeerError(name_of(rank_name(call.line.first, job_ranks_), call.there) +
                      " does not know this job's secret: SMDDP_JOB_SECRET must be the same on all ranks, and so must "
                      "the version of smddp (or a stranger answers in its place)");
    if (!send_message(call.socket, *proof)) return retry(call, EPIPE);
    call.step = Step::proved;
  } else if (call.step == Step::proved) {
    Ack ack;
    const Heard heard = hear(call.socket, call.received, ack);
    if (heard == Heard::part) return;
    if (heard == Heard::closed || !Caller::accepted(ack)) return retry(call, ECONNRESET);
    call.step = Step::done;
    made(call.line, std::move(call.socket));
  }
}

void Meeting::made(Line line, Socket socket) {
  made_.insert(line);
  (*take_)(line, std::move(socket));
}

void Meeting::accept_all() {
  for (;;) {
    Socket socket = accept_from(listener_);
    if (!socket.open()) return;
    if (guests_.size() >= kMostGuests) guests_.erase(guests_.begin());
    guests_.emplace_back(std::move(socket), Listener(key_, rank_), Deadline(kManners));
  }
}

bool Meeting::advance(Guest& guest) {
  if (!guest.greeted) {
    Hello hello;
    const Heard heard = hear(guest.socket, guest.received, hello);
    if (heard != Heard::all) return heard == Heard::part;
    const auto reply = guest.manners.greet(hello);
    if (!reply || expected_.count({hello.from, hello.channel}) == 0) return false;
    guest.greeted = true;
    return send_message(guest.socket, *reply);
  }
  Digest proof{};
  const Heard heard = hear(guest.socket, guest.received, proof);
  if (heard != Heard::all) return heard == Heard::part;
  if (!guest.manners.believes(proof) || !send_message(guest.socket, Listener::ack())) return false;
  const Hello& hello = guest.manners.hello();
  made({hello.from, hello.channel}, std::move(guest.socket));
  return false;
}

void Meeting::turn_away() {
  guests_.erase(std::remove_if(guests_.begin(), guests_.end(),
                               [](const Guest& guest) { return !guest.socket.open() || guest.patience.passed(); }),
                guests_.end());
}

void Meeting::poll_once() {
  std::vector<pollfd> entries{{listener_.fd(), POLLIN, 0}};
  std::vector<Call*> calling;
  const auto now = Deadline::Clock::now();
  milliseconds nap = kWatchInterval;
  for (Call& call : calls_) {
    if (call.step == Step::done) continue;
    if (call.step == Step::idle && now >= call.again) begin(call);
    if (call.step == Step::idle) {
      nap = kRetryPause;
      continue;
    }
    const bool connecting = call.step == Step::connecting;
    entries.push_back({call.socket.fd(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
    calling.push_back(&call);
  }
  const std::size_t known = guests_.size();
  for (const Guest& guest : guests_) entries.push_back({guest.socket.fd(), POLLIN, 0});
  const int ready = ::poll(entries.data(), entries.size(), static_cast<int>(deadline_.left(nap).count()));
  if (ready < 0 && errno != EINTR) throw_system("poll", errno);
  if (ready > 0) {
    for (std::size_t i = 0; i < calling.size(); ++i)
      if (entries[1 + i].revents) advance(*calling[i]);
    for (std::size_t i = 0; i < known; ++i)
      if (entries[1 + calling.size() + i].revents && !advance(guests_[i])) guests_[i].socket.close();
    if (entries[0].revents) accept_all();
  }
  turn_away();
}

std::string Meeting::in_the_job(std::vector<int> ranks) const {
  for (int& rank : ranks)
    if (static_cast<std::size_t>(rank) < job_ranks_.size()) rank = job_ranks_[static_cast<std::size_t>(rank)];
  return join_ranks(ranks);
}

void Meeting::give_up() const {
  std::vector<int> absent;
  std::string text;
  for (const Line& line : expected_)
    if (made_.count(line) == 0 && (absent.empty() || absent.back() != line.first)) absent.push_back(line.first);
  if (!absent.empty()) text = in_the_job(absent) + " did not join in ";
  for (const Call& call : calls_) {
    if (call.step == Step::done || !text.empty()) continue;
    absent.push_back(call.line.first);
    text = "cannot connect to " + name_of(rank_name(call.line.first, job_ranks_), call.there) + ": " +
           (call.error_number ? std::strerror(call.error_number) : "no answer") +
           " (a firewall between the hosts, or the wrong interface? see SMDDP_SOCKET_IFNAME), tried for ";
  }
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g s", deadline_.seconds());
  TimeoutError error(text + seconds);
  error.set_ranks(absent);
  throw error;
}

void Meeting::run(const std::function<void(Line, Socket)>& take) {
  take_ = &take;
  while (!complete()) {
    poll_once();
    if (complete()) break;
    watch_();
    if (deadline_.passed()) give_up();
  }
}

}  // namespace smddp
