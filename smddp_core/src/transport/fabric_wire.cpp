#include "transport/fabric_wire.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace smddp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Where the provider cannot wake a sleeper: naps between looks, growing to the second value.
constexpr microseconds kShortNap{20};
constexpr microseconds kLongNap{500};

// How often the control plane is asked while waiting without poll().
constexpr milliseconds kCheckEvery{5};

// A rank that leaves in good order closes its control connection while its last messages are still on their way.
constexpr milliseconds kLastWords{1000};

// Completions taken from the queue at once, and turns of progress() at most: a caller has more to do.
constexpr std::size_t kBatch = 32;
constexpr int kTurns = 64;

// Where keys are the caller's to choose, they must differ among all that a device has registered.
std::uint64_t next_key() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

FabricWire::FabricWire(std::unique_ptr<FabricEndpoint> endpoint, int rank, const std::map<int, std::string>& addresses,
                       const Nonce& nonce, Control& control, const FabricPace& pace)
    : domain_(endpoint->shared_domain()),
      endpoint_(std::move(endpoint)),
      rank_(rank),
      control_(control),
      segment_bytes_(std::min(pace.segment_bytes, endpoint_->longest())),
      spins_(pace.spins) {
  for (const char digit : nonce) mark_ = mark_ * 31 + static_cast<unsigned char>(digit);
  mark_ <<= 48;
  for (const auto& [other, address] : addresses) {
    peers_[other].rank = other;
    peers_[other].handle = endpoint_->insert(address);
  }
  const std::size_t streams = std::max<std::size_t>(peers_.size(), 1);
  const std::size_t most = std::max<std::size_t>(endpoint_->depth() / streams, 1);
  window_ = static_cast<int>(std::min(most, static_cast<std::size_t>(pace.window)));
  make_slots(2 * streams * static_cast<std::size_t>(window_), pace.bounce || endpoint_->needs_registration());
}

void FabricWire::make_slots(std::size_t count, bool bounce) {
  slots_.resize(count);
  char* memory = nullptr;
  if (bounce) {
    const std::size_t bytes = count * segment_bytes_;
    memory = reinterpret_cast<char*>(bounce_.at_least(bytes));
    fid_mr* registration = nullptr;
    fabric_require(
        ::fi_mr_reg(endpoint_->domain(), memory, bytes, FI_SEND | FI_RECV, 0, next_key(), 0, &registration, nullptr),
        "registering " + std::to_string(bytes) + " bytes");
    registration_.reset(registration);
  }
  for (std::size_t i = 0; i < count; ++i) {
    slots_[i].bounce = memory ? memory + i * segment_bytes_ : nullptr;
    free_.push_back(&slots_[i]);
  }
}

void FabricWire::abandon() {
  endpoint_.reset();
  registration_.reset();
  domain_.reset();
}

FabricWire::Peer& FabricWire::peer(int rank) {
  const auto entry = peers_.find(rank);
  if (entry == peers_.end()) throw UsageError("no way to rank " + std::to_string(rank) + " over the fabric");
  return entry->second;
}

void FabricWire::post(Stream& stream, void* data, std::size_t bytes, Done done) {
  if (bytes == 0) return;
  Piece piece;
  piece.data = static_cast<char*>(data);
  piece.bytes = bytes;
  piece.done = std::move(done);
  stream.pieces.push_back(std::move(piece));
  ++posted_;
}

void FabricWire::send(int rank, const void* data, std::size_t bytes, Done done) {
  // Only ever read from: one kind of piece serves both directions.
  post(peer(rank).sends, const_cast<void*>(data), bytes, std::move(done));
}

void FabricWire::recv(int rank, void* data, std::size_t bytes, Done done) {
  post(peer(rank).receives, data, bytes, std::move(done));
}

std::uint64_t FabricWire::tag(int from, std::uint64_t number) const {
  constexpr std::uint64_t rank_mask = (std::uint64_t{1} << 20) - 1;
  constexpr std::uint64_t number_mask = (std::uint64_t{1} << 28) - 1;
  return mark_ | (static_cast<std::uint64_t>(from) & rank_mask) << 28 | (number & number_mask);
}

std::vector<int> FabricWire::pending() const {
  std::vector<int> ranks;
  for (const auto& [rank, peer] : peers_)
    if (!peer.sends.pieces.empty() || !peer.receives.pieces.empty()) ranks.push_back(rank);
  return ranks;
}

void FabricWire::lost(const Op& op, int rank, const std::string& reason) {
  control_.settle();
  if (reason.empty() || control_.closed(rank)) throw_peer_closed(op, rank, control_.how_lost(rank));
  PeerError error(describe(op.header) + ": " + (op.topology ? op.topology->who({rank}) : join_ranks({rank})) +
                  " cannot be reached over " + endpoint_->name() + ": " + reason);
  error.set_ranks({rank});
  throw error;
}

// Hands the next message of the stream to the provider. False when there is none, or the provider is full.
bool FabricWire::start_one(const Op& op, Peer& peer, Stream& stream, bool receiving) {
  if (stream.under_way >= window_ || stream.started == stream.pieces.size()) return false;
  Piece& piece = stream.pieces[stream.started];
  Slot& slot = *free_.back();
  slot.peer = &peer;
  slot.piece = &piece;
  slot.receiving = receiving;
  slot.data = piece.data + piece.started;
  slot.bytes = std::min(segment_bytes_, piece.bytes - piece.started);
  char* const at = slot.bounce ? slot.bounce : slot.data;
  if (slot.bounce && !receiving) std::memcpy(slot.bounce, slot.data, slot.bytes);
  void* const key = registration_ ? ::fi_mr_desc(registration_.get()) : nullptr;
  const std::uint64_t mark = tag(receiving ? peer.rank : rank_, stream.next);
  const long code = receiving ? ::fi_trecv(endpoint_->ep(), at, slot.bytes, key, FI_ADDR_UNSPEC, mark, 0, &slot.context)
                              : ::fi_tsend(endpoint_->ep(), at, slot.bytes, key, peer.handle, mark, &slot.context);
  if (code == -FI_EAGAIN) return false;
  if (code != 0) lost(op, peer.rank, fabric_text(code));
  free_.pop_back();
  ++stream.next;
  ++stream.under_way;
  piece.started += slot.bytes;
  if (piece.started == piece.bytes) ++stream.started;
  return true;
}

void FabricWire::start(const Op& op, Peer& peer, bool receiving) {
  Stream& stream = receiving ? peer.receives : peer.sends;
  while (start_one(op, peer, stream, receiving)) {
  }
}

void FabricWire::finish(Slot& slot, std::size_t bytes, const std::string& fault) {
  Stream& stream = slot.receiving ? slot.peer->receives : slot.peer->sends;
  Piece& piece = *slot.piece;
  if (slot.receiving && slot.bounce) std::memcpy(slot.data, slot.bounce, std::min(bytes, slot.bytes));
  if (!fault.empty()) piece.fault = fault;
  if (slot.receiving && fault.empty() && bytes != slot.bytes)
    piece.fault = "a message of " + std::to_string(bytes) + " bytes, not " + std::to_string(slot.bytes);
  piece.finished += slot.bytes;
  --stream.under_way;
  slot.peer->gone_since = {};
  free_.push_back(&slot);
}

// Sends that fail mean that the peer cannot be reached. A receive fails when what came is too long: this is told when
// all before it has been looked at, because a header in front explains it better.
void FabricWire::fail(const Op& op, const fi_cq_err_entry& entry) {
  auto* slot = static_cast<Slot*>(entry.op_context);
  if (!slot) throw Error(ErrorKind::system, endpoint_->name() + ": " + endpoint_->describe(entry));
  const std::string text = endpoint_->describe(entry);
  if (!slot->receiving || entry.err != FI_ETRUNC) lost(op, slot->peer->rank, text);
  finish(*slot, slot->bytes, "a message longer than the " + std::to_string(slot->bytes) + " bytes expected");
}

bool FabricWire::drain(const Op& op) {
  fi_cq_tagged_entry entries[kBatch];
  const ssize_t count = ::fi_cq_read(endpoint_->cq(), entries, kBatch);
  if (count == -FI_EAGAIN) return false;
  if (count == -FI_EAVAIL) {
    FabricRoomy<fi_cq_err_entry> error;
    if (::fi_cq_readerr(endpoint_->cq(), &error.value, 0) > 0) fail(op, error.value);
    return true;
  }
  if (count < 0) fabric_require(count, "reading completions of " + endpoint_->name());
  for (ssize_t i = 0; i < count; ++i) finish(*static_cast<Slot*>(entries[i].op_context), entries[i].len, std::string());
  return count > 0;
}

void FabricWire::deliver(const Op& op, Peer& peer, Stream& stream) {
  while (!stream.pieces.empty() && stream.pieces.front().finished == stream.pieces.front().bytes) {
    Piece piece = std::move(stream.pieces.front());
    stream.pieces.pop_front();
    --stream.started;
    --posted_;
    if (!piece.fault.empty())
      throw MismatchError("" + describe(op.header) + ": " +
                          (op.topology ? op.topology->who({peer.rank}) : join_ranks({peer.rank})) + " sent " +
                          piece.fault + ": ranks are in different operations");
    if (piece.done) piece.done();
  }
}

// Receives first: what finds no receive at the peer costs it a copy, or a round trip.
bool FabricWire::turn(const Op& op) {
  for (auto& [rank, peer] : peers_) start(op, peer, true);
  for (auto& [rank, peer] : peers_) start(op, peer, false);
  if (!drain(op)) return false;
  for (auto& [rank, peer] : peers_) {
    deliver(op, peer, peer.receives);
    deliver(op, peer, peer.sends);
  }
  return true;
}

template <class Body>
void FabricWire::guarded(Body body) {
  if (!endpoint_) throw Error(ErrorKind::system, "the fabric was closed after an error");
  try {
    body();
  } catch (const Error& error) {
    // The peers hear the reason first: closing the endpoint takes its time, and they notice that.
    control_.raise(error.kind(), error.what());
    abandon();
    throw;
  } catch (...) {
    abandon();
    throw;
  }
}

void FabricWire::progress(const Op& op) {
  guarded([&] {
    for (int i = 0; i < kTurns && turn(op); ++i) {
    }
  });
}

void FabricWire::check_waiting(const Op& op, bool urgent) {
  const auto now = Clock::now();
  if (!urgent && now - checked_ < kCheckEvery && !control_.raised()) return;
  checked_ = now;
  control_.check(op);
  const std::vector<int> waiting = pending();
  control_.set_awaited(op.header.sequence, waiting);
  for (const int rank : waiting) {
    auto& since = peers_[rank].gone_since;
    if (!control_.closed(rank)) continue;
    if (since == Clock::time_point{})
      since = now;
    else if (now - since > kLastWords)
      lost(op, rank, std::string());
  }
  if (op.deadline.passed()) throw_timeout(op, control_.blame(waiting));
}

// True when the control plane has news.
bool FabricWire::nap(const Op& op) {
  if (endpoint_->wait_fd() < 0) {
    std::this_thread::sleep_for(std::min<microseconds>(kShortNap * ++idle_turns_, kLongNap));
    return false;
  }
  if (!endpoint_->may_wait()) return false;
  entries_.assign(1, pollfd{endpoint_->wait_fd(), POLLIN, 0});
  control_.append_to(entries_);
  const int ready = ::poll(entries_.data(), entries_.size(), static_cast<int>(op.deadline.left(kLongestPoll).count()));
  if (ready < 0 && errno != EINTR) throw_system("poll", errno);
  return std::any_of(entries_.begin() + 1, entries_.end(), [](const pollfd& entry) { return entry.revents != 0; });
}

bool FabricWire::look(const Op& op) {
  for (int i = 0; i <= spins_; ++i) {
    if (turn(op)) return true;
    // Gives the core to a rank that needs it; returns at once where there is none.
    if (spins_ > 0) ::sched_yield();
  }
  return false;
}

void FabricWire::wait(const Op& op) {
  guarded([&] {
    const bool moved = look(op);
    const bool news = !moved && nap(op);
    if (moved || turn(op)) idle_turns_ = 0;
    check_waiting(op, news);
  });
}

namespace {

// What ranks say to each other first.
struct Greeting {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

}  // namespace

std::unique_ptr<Wire> connect_fabric(std::unique_ptr<FabricPort> port, int rank,
                                     const std::map<int, std::string>& addresses, const Nonce& nonce, Control& control,
                                     const FabricPace& pace, const Deadline& deadline) {
  auto* const endpoint = static_cast<FabricEndpoint*>(port.release());
  const std::string name = endpoint->name();
  auto wire =
      std::make_unique<FabricWire>(std::unique_ptr<FabricEndpoint>(endpoint), rank, addresses, nonce, control, pace);
  Op op{OpHeader{}, deadline};
  std::map<int, std::pair<Greeting, Greeting>> greetings;
  for (const auto& [other, address] : addresses) {
    auto& [mine, theirs] = greetings[other];
    mine = {rank, other};
    wire->send(other, &mine, sizeof(mine));
    wire->recv(other, &theirs, sizeof(theirs));
  }
  std::vector<int> silent;
  try {
    while (!wire->idle()) {
      silent = wire->pending();
      wire->wait(op);
    }
  } catch (const TimeoutError&) {
    throw TimeoutError("no message from " + join_ranks(silent) + " over " + name + " in " +
                       std::to_string(static_cast<long>(deadline.seconds())) +
                       " s (EFA: the security group must allow all traffic from and to itself; SMDDP_NET=tcp goes "
                       "without)");
  }
  for (const auto& [other, said] : greetings)
    if (said.second.from != other || said.second.to != rank)
      throw Error(ErrorKind::system, "rank " + std::to_string(other) + " sent no greeting over " + name);
  return wire;
}

}  // namespace smddp
