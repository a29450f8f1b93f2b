// Rounds that carry addresses: a host's ranks read one another's memory.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "smddp/errors.hpp"
#include "transport/arena.hpp"
#include "transport/arena_lane.hpp"
#include "transport/peer_memory.hpp"

namespace smddp {
namespace {

// A rank that reads another's memory takes longer over it: a wait for that spins this many times as long.
constexpr int kSpinsForReaders = 10;

}  // namespace

Arena::Round Arena::lend(const Op& op, const std::vector<const void*>& addresses, bool looked) {
  Round round = begin(op, addresses.size() * sizeof(std::uintptr_t));
  if (own_cores_ && !hook_) round.spins *= kSpinsForReaders;
  const auto can_be_read = [pid = lane(me_).proof.pid](std::uintptr_t address) {
    std::byte first{};
    return read_memory_of(pid, address, &first, 1) == 0;
  };
  auto* const lent = reinterpret_cast<std::uintptr_t*>(slot(me_, round));
  const void* before = nullptr;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(addresses[i] ? addresses[i] : proof_.get());
    const bool same = i > 0 && addresses[i] == before;
    lent[i] = same ? lent[i - 1] : !looked || can_be_read(address) ? address : 0;
    before = addresses[i];
  }
  publish(op, round);
  return round;
}

bool Arena::lent_by_all(const Round& round, std::size_t addresses) {
  for (int r = 0; r < size(); ++r) {
    const auto* lent = reinterpret_cast<const std::uintptr_t*>(slot(r, round));
    if (std::count(lent, lent + addresses, std::uintptr_t{0}) > 0) return false;
  }
  return true;
}

bool Arena::fetch(const Op& op, int local_rank, const Round& round, std::size_t index, std::size_t offset, void* to,
                  std::size_t bytes) {
  if (bytes == 0) return true;
  Lane& theirs = lane(local_rank);
  const std::uintptr_t address = reinterpret_cast<const std::uintptr_t*>(slot(local_rank, round))[index];
  const int error = read_memory_of(theirs.proof.pid, address + offset, to, bytes);
  // What was read before they withdraw is what they lent. Not a plain load, which could be carried out before the copy.
  const bool withdrawn = theirs.withdrawn.fetch_or(0, std::memory_order_seq_cst) != 0;
  if (withdrawn || (error != 0 && error != EFAULT)) throw_unreadable(op, local_rank, error);
  return error == 0;
}

void Arena::throw_unreadable(const Op& op, int local_rank, int error_number) {
  const int rank = members_[static_cast<std::size_t>(local_rank)];
  control_->settle();
  if (error_number == 0 || error_number == ESRCH || control_->closed(rank))
    throw_peer_closed(op, rank, control_->how_lost(rank));
  throw Error(ErrorKind::system, describe(op.header) + ": cannot read the memory of " + who(op, {rank}) + ": " +
                                     std::strerror(error_number) + " (SMDDP_SHM_DIRECT=never does without)");
}

void Arena::withdraw() { lane(me_).withdrawn.store(1, std::memory_order_seq_cst); }

void Arena::signal_unread(const Round& round) {
  lane(me_).unread.store(round.number, std::memory_order_relaxed);
  signal_reduced(round);
}

// A later round cannot have changed it: this rank has not published any.
bool Arena::unread_by(int local_rank, const Round& round) const {
  return lane(local_rank).unread.load(std::memory_order_relaxed) == round.number;
}

}  // namespace smddp
