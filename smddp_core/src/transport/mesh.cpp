#include "transport/mesh.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// One stream may take this much of a turn, so that no peer waits for another's whole backlog. With 256 KiB, exchanges
// over links that are faster than the cores took 1.1 to 1.3 times as long (1 to 64 MiB).
constexpr std::size_t kTurn = std::size_t{1} << 20;

// Parts that go in one system call: a header and its data, or a run of small pieces.
constexpr std::size_t kGather = 8;

// Up to this many connections it is cheaper to try each of them than to ask poll() first.
constexpr std::size_t kFewStreams = 8;

// Parts begin on cache lines.
constexpr std::size_t kAlignment = 64;

// A wake-up from poll() takes 50 us and more; the answer to a small message is often here earlier. Where ranks
// outnumber cores, looking only keeps the awaited rank from running.
constexpr int kSpins = 50;
// More than this may come at the pace of the link, packet by packet: looking for each is then core time for nothing
// (four hosts at 1 Gbit/s, 16 MiB, took more of it than gloo). It is looked for if what comes at the pace of late while
// a rank wakes up is worth it. (Judged by whether looking finds something, two hosts whose links are as fast as their
// cores go on waking each other: 64 KiB in 35 us instead of 27. Judged by when all will be there, four hosts on two
// cores: 1 MiB in 970 us instead of 850.)
constexpr std::size_t kMuch = std::size_t{32} << 10;
constexpr double kFastEnough = 300e6;  // bytes per second
constexpr double kOfLate = 0.9;        // what a wait counts when the next has come
// Who only receives, and more than this, does not look: it would read what its peer sends in pieces of 90 KiB, on a
// core that is busy all the while. (Broadcasts to one host whose link is as fast as its cores: 8.0 ms of both hosts'
// CPU time for 16 MiB, asleep 7.2, gloo 7.6; both ways take as long. Of 4 MiB it took 12 to 20% longer. Who sends as
// much meanwhile wins nothing: two hosts' all-gather of 16 MiB took 5% longer.)
constexpr std::size_t kOneWay = std::size_t{6} << 20;

// Bytes worth a wake-up: at 1 Gbit/s the kernel would otherwise wake the reader for every few kilobytes. Four hosts,
// 128 MiB: 129 ms of CPU time with 64 KiB, 104 with 256.
constexpr std::size_t kWakeBytes = std::size_t{256} << 10;
// Where much comes fast: the reader is back before the sender's window is full. (Two hosts, broadcast of 64 MiB: 20.0
// ms instead of 20.4.)
constexpr std::size_t kWakeBytesIfFast = std::size_t{128} << 10;
// Below this a system call to say so costs more than it saves.
constexpr std::size_t kWakeFloor = std::size_t{16} << 10;

// What all peers that are not in the operation yet may be sent: as much as comes in so long at the pace of late. More
// keeps a link from those that are: see "Running ahead" in docs/smddp-algorithms.md.
constexpr double kAheadSeconds = 2e-3;
// Each at least so much, so that small messages leave at once and a peer in time has something to go on with.
constexpr std::size_t kAheadFloor = std::size_t{16} << 10;

int spins_for(int local_ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= local_ranks ? kSpins : 0;
}

bool would_block() { return errno == EAGAIN || errno == EINTR; }

// The front of a queue as one message of at most `budget` bytes.
template <class Queue>
msghdr gather(const Queue& queue, iovec (&vectors)[kGather], std::size_t budget) {
  msghdr message{};
  message.msg_iov = vectors;
  for (const auto& part : queue) {
    if (message.msg_iovlen == kGather || budget == 0) break;
    iovec& vector = vectors[message.msg_iovlen++];
    vector.iov_base = part.data;
    vector.iov_len = std::min(part.bytes, budget);
    budget -= vector.iov_len;
  }
  return message;
}

}  // namespace

Mesh::Mesh(std::vector<Peers> streams, Control& control, int local_ranks)
    : control_(control), spins_(spins_for(local_ranks)) {
  for (Peers& peers : streams)
    for (auto& [rank, socket] : peers) {
      peers_[rank].streams.emplace_back();
      peers_[rank].streams.back().socket = std::move(socket);
      ++sockets_;
    }
}

Mesh::Peer& Mesh::peer(int rank) {
  const auto entry = peers_.find(rank);
  if (entry == peers_.end()) throw UsageError("smddp: no connection to rank " + std::to_string(rank));
  return entry->second;
}

void Mesh::send(int rank, const void* data, std::size_t bytes, Done done) {
  // A queue serves both directions; what is sent is only read.
  if (bytes == 0) return;
  post(peer(rank), &Stream::sends, &Peer::sends, const_cast<void*>(data), bytes, std::move(done));
  to_send_meanwhile_ += bytes;
}

void Mesh::recv(int rank, void* data, std::size_t bytes, Done done) {
  if (bytes == 0) return;
  post(peer(rank), &Stream::receives, &Peer::receives, data, bytes, std::move(done));
  if (bytes_expected_ == 0) {
    nothing_came_ = true;
    most_expected_ = 0;
    to_send_meanwhile_ = 0;
  }
  bytes_expected_ += bytes;
  most_expected_ = std::max(most_expected_, bytes_expected_);
}

void Mesh::post(Peer& peer, Queue Stream::* queue, std::deque<Piece> Peer::* pieces, void* data, std::size_t bytes,
                Done done) {
  const std::size_t streams = bytes < kStripeFloor ? 1 : peer.streams.size();
  const std::size_t step = (bytes / streams + kAlignment - 1) / kAlignment * kAlignment;
  (peer.*pieces).push_back({static_cast<int>(streams), std::move(done)});
  Piece* piece = &(peer.*pieces).back();
  for (std::size_t s = 0; s < streams; ++s) {
    const std::size_t at = s * step;
    const std::size_t end = s + 1 == streams ? bytes : at + step;
    (peer.streams[s].*queue).push_back({static_cast<char*>(data) + at, end - at, piece});
  }
  ++posted_;
}

// Each stream has its part, and none waits for another's: what goes first on the first one makes the peer release this
// rank.
void Mesh::hold(const std::vector<int>& ranks) {
  const double ahead = recent_seconds_ > 0 ? kAheadSeconds * recent_bytes_ / recent_seconds_ : 0;
  const std::size_t each = std::max(static_cast<std::size_t>(ahead) / ranks.size(), kAheadFloor);
  for (const int rank : ranks) {
    const auto entry = peers_.find(rank);
    if (entry == peers_.end()) continue;
    std::vector<Stream>& streams = entry->second.streams;
    for (Stream& stream : streams) stream.allowed = each / streams.size();
  }
}

void Mesh::release(int rank) {
  for (Stream& stream : peer(rank).streams) stream.allowed = kUnlimited;
}

void Mesh::lost(const Op& op, int rank, int error_number) {
  if (error_number == EFAULT) throw_system("a buffer that this rank gave to " + describe(op.header), EFAULT);
  control_.settle();
  throw_peer_closed(op, rank, control_.how_lost(rank, error_number));
}

// `bytes` of the queue have moved: says so to those pieces that are complete with it.
void Mesh::advance(Queue& queue, std::deque<Piece>& pieces, std::size_t bytes) {
  while (bytes > 0) {
    Part& head = queue.front();
    const std::size_t moved = std::min(bytes, head.bytes);
    bytes -= moved;
    head.data += moved;
    head.bytes -= moved;
    if (head.bytes > 0) break;
    --head.piece->parts;
    queue.pop_front();
  }
  while (!pieces.empty() && pieces.front().parts == 0) {
    const Done done = std::move(pieces.front().done);
    pieces.pop_front();
    --posted_;
    if (done) done();
  }
}

bool Mesh::push(const Op& op, int rank, Peer& peer, Stream& stream) {
  const std::size_t turn = std::min(kTurn, stream.allowed);
  std::size_t budget = turn;
  iovec vectors[kGather];
  while (!stream.sends.empty() && budget > 0) {
    const msghdr message = gather(stream.sends, vectors, budget);
    const ssize_t n = ::sendmsg(stream.socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (would_block()) break;
      lost(op, rank, errno);
    }
    budget -= static_cast<std::size_t>(n);
    if (stream.allowed != kUnlimited) stream.allowed -= static_cast<std::size_t>(n);
    advance(stream.sends, peer.sends, static_cast<std::size_t>(n));
  }
  return budget < turn;
}

bool Mesh::pull(const Op& op, int rank, Peer& peer, Stream& stream) {
  std::size_t budget = kTurn;
  iovec vectors[kGather];
  while (!stream.receives.empty() && budget > 0) {
    msghdr message = gather(stream.receives, vectors, budget);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) wanted += vectors[i].iov_len;
    const ssize_t n = ::recvmsg(stream.socket.fd(), &message, MSG_DONTWAIT);
    if (n < 0 && would_block()) break;
    if (n <= 0) lost(op, rank, n < 0 ? errno : 0);
    budget -= static_cast<std::size_t>(n);
    bytes_expected_ -= static_cast<std::size_t>(n);
    received_ += static_cast<std::uint64_t>(n);
    advance(stream.receives, peer.receives, static_cast<std::size_t>(n));
    // Less than asked for: the socket is empty, and asking again would only say so.
    if (static_cast<std::size_t>(n) < wanted) break;
  }
  return budget < kTurn;
}

bool Mesh::try_all(const Op& op) {
  bool moved = false;
  for (auto& [rank, peer] : peers_)
    for (Stream& stream : peer.streams) {
      moved |= push(op, rank, peer, stream);
      moved |= pull(op, rank, peer, stream);
    }
  return moved;
}

// Never more than the piece at hand: what comes after it may be sent only once it was answered.
void Mesh::set_low_water(Stream& stream) {
  const std::size_t rest = stream.receives.empty() ? 1 : stream.receives.front().bytes;
  const std::size_t most = comes_fast() ? kWakeBytesIfFast : kWakeBytes;
  const int wanted = rest < kWakeFloor && stream.low_water == 1 ? 1 : static_cast<int>(std::min(rest, most));
  if (wanted == stream.low_water) return;
  if (::setsockopt(stream.socket.fd(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)) == 0)
    stream.low_water = wanted;
}

void Mesh::list_wanted() {
  entries_.clear();
  polled_.clear();
  for (auto& [rank, peer] : peers_)
    for (Stream& stream : peer.streams) {
      const int events =
          (stream.sends.empty() || stream.allowed == 0 ? 0 : POLLOUT) | (stream.receives.empty() ? 0 : POLLIN);
      if (events == 0) continue;
      set_low_water(stream);
      entries_.push_back({stream.socket.fd(), static_cast<short>(events), 0});
      polled_.push_back({rank, &peer, &stream});
    }
}

void Mesh::move_ready(const Op& op) {
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    const auto [rank, peer, stream] = polled_[i];
    const short events = entries_[i].revents;
    if (events & (POLLIN | POLLHUP | POLLERR)) pull(op, rank, *peer, *stream);
    if (events & (POLLOUT | POLLHUP | POLLERR)) push(op, rank, *peer, *stream);
  }
}

void Mesh::progress(const Op& op) {
  if (sockets_ <= kFewStreams) {
    try_all(op);
    return;
  }
  list_wanted();
  if (::poll(entries_.data(), entries_.size(), 0) > 0) move_ready(op);
}

void Mesh::check_waiting(const Op& op) {
  if (op.deadline.passed()) throw_timeout(op, control_.blame(unfinished()));
}

std::vector<int> Mesh::unfinished() const {
  std::vector<int> ranks;
  for (const Polled& polled : polled_)
    if (ranks.empty() || ranks.back() != polled.rank) ranks.push_back(polled.rank);
  return ranks;
}

bool Mesh::comes_fast() const { return recent_bytes_ >= kFastEnough * recent_seconds_; }

// Looks for something to move for a while; true if there was.
bool Mesh::spin(const Op& op) {
  for (int i = 0; i < spins_; ++i) {
    if (try_all(op)) return true;
    // Gives the core to a rank that needs it; returns at once where there is none.
    ::sched_yield();
  }
  return false;
}

// The pace is that of waits for much: the first one of an operation says how late others are, and the last bytes come
// when they come.
void Mesh::wait(const Op& op) {
  using Clock = std::chrono::steady_clock;
  const bool much = bytes_expected_ > kMuch;
  const bool first = std::exchange(nothing_came_, false);
  const bool one_way = most_expected_ > kOneWay && to_send_meanwhile_ <= kMuch;
  const bool look = !much || (!one_way && comes_fast());
  const std::uint64_t before = received_;
  const auto start = Clock::now();
  if (!look || !spin(op)) sleep(op);
  if (first || !much) return;
  recent_seconds_ = kOfLate * recent_seconds_ + std::chrono::duration<double>(Clock::now() - start).count();
  recent_bytes_ = kOfLate * recent_bytes_ + static_cast<double>(received_ - before);
}

void Mesh::sleep(const Op& op) {
  list_wanted();
  control_.append_to(entries_);
  const int ready = ::poll(entries_.data(), entries_.size(), static_cast<int>(op.deadline.left(kLongestPoll).count()));
  if (ready < 0 && errno != EINTR) throw_system("poll", errno);
  if (ready == 0) control_.set_awaited(op.header.sequence, unfinished());
  const auto woken = [](const pollfd& entry) { return entry.revents != 0; };
  const auto control_begin = entries_.begin() + static_cast<std::ptrdiff_t>(polled_.size());
  if (ready <= 0 || control_.raised() || std::any_of(control_begin, entries_.end(), woken)) control_.check(op);
  check_waiting(op);
  if (ready > 0) move_ready(op);
}

}  // namespace smddp
