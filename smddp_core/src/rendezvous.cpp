#include "rendezvous.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "op.hpp"
#include "security/sha256.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

using std::chrono::milliseconds;

// How long one request to the store may take before the ranks are looked at.
constexpr milliseconds kSlice{500};
// A last look: what a rank wrote before it left is there.
constexpr milliseconds kLastLook{50};
constexpr milliseconds kStoreNap{10};
// How long the reason of a rank that left may take to arrive where all that is known is that the store is gone.
constexpr milliseconds kStorePatience{1000};
// How much later than the others a rank 0 may speak that finds an earlier one's refusal in the store.
constexpr milliseconds kRefusalPatience{2000};

// A store's keys hold letters, digits and '/' (smddp.h); the word of a rank 0 holds more. 16 bytes tell words apart, of
// which each has a nonce.
std::string digest_of(const std::string& word) {
  constexpr char digits[] = "0123456789abcdef";
  const Digest digest = sha256(word.data(), word.size());
  std::string text;
  for (std::size_t i = 0; i < 16; ++i) text += {digits[digest[i] / 16], digits[digest[i] % 16]};
  return text;
}

}  // namespace

void Rendezvous::check_met() const {
  if (!control_) return;
  control_->check();
  const auto lost = control_->lost();
  if (!lost) return;
  control_->settle();
  PeerError error("group " + group_ + ": " + rank_name(lost->rank, job_ranks_) + " " + lost->how +
                  " while the group was being set up");
  error.set_ranks({lost->rank});
  throw error;
}

void Rendezvous::check() const {
  check_met();
  if (look_) look_();
}

// The store may fail because the rank that keeps it is gone: then that is the better reason.
void Rendezvous::throw_cause() const {
  const Deadline until(kStorePatience);
  do {
    check();
    std::this_thread::sleep_for(kStoreNap);
  } while (!until.passed());
}

void Rendezvous::put(const std::string& key, const std::string& value) {
  for (;;) {
    try {
      return store_.set(key, value);
    } catch (const TimeoutError&) {
      check();
      if (!deadline_.passed()) continue;
      require_answers();
      throw;
    } catch (const Error&) {
      throw_cause();
      throw;
    }
  }
}

// Nobody can be blamed for what a store does not tell.
void Rendezvous::require_answers() const {
  if (!store_.silent()) return;
  std::ostringstream text;
  text << "group " << group_ << ": the store, which rank 0 or the launcher keeps, does not answer; waited "
       << deadline_.seconds() << " s";
  throw TimeoutError(text.str());
}

bool Rendezvous::try_get(const std::string& key, milliseconds patience, std::string& value) {
  try {
    value = store_.get(prefix_ + key, patience);
    return true;
  } catch (const TimeoutError&) {
    return false;
  } catch (const Error&) {
    throw_cause();
    throw;
  }
}

// prefix_ is still empty.
std::string Rendezvous::root() {
  const Deadline patience(kRefusalPatience);
  for (;;) {
    std::string text = get(kRoot, 0);
    const bool refused = text.rfind(kRefused, 0) == 0;
    if (text != kTaken && !refused) return text;
    check();
    if (refused && (patience.passed() || deadline_.passed())) throw_excused(0, text.substr(sizeof(kRefused) - 1));
    if (deadline_.passed()) throw_absent(0);
    std::this_thread::sleep_for(kStoreNap);
  }
}

void Rendezvous::refuse(const std::string& reason) {
  try {
    store_.set(kRoot, kRefused + without_name(reason));
  } catch (const Error&) {
    // As in excuse().
  }
}

void Rendezvous::check_root(const std::string& known) {
  std::string now;
  if (prefix_.empty() && try_get(kRoot, kLastLook, now) && now != known) throw RootChanged();
}

// To one rank 0 alone: its word has its group's nonce.
void Rendezvous::excuse(int rank, const std::string& reason, milliseconds patience) {
  const Deadline until(deadline_.left(patience));
  try {
    std::string root;
    while ((root = store_.get(kRoot, until.left(patience))) == kTaken && !until.passed())
      std::this_thread::sleep_for(kStoreNap);
    if (root != kTaken) store_.set(kExcuse + digest_of(root), std::to_string(rank) + " " + without_name(reason));
  } catch (const Error&) {
    // Nobody waits, or the store fails: `reason` is what counts.
  }
}

void Rendezvous::check_excuses(const std::string& root) {
  std::string text;
  if (!try_get(kExcuse + digest_of(root), milliseconds(0), text)) return;
  const std::size_t space = text.find(' ');
  throw_excused(std::atoi(text.c_str()), space == std::string::npos ? text : text.substr(space + 1));
}

void Rendezvous::throw_excused(int rank, const std::string& reason) const {
  PeerError error("group " + group_ + ": " + rank_name(rank, job_ranks_) + " did not join: " + reason);
  error.set_ranks({rank});
  throw error;
}

// A rank that waits for others itself has joined, and says for whom.
void Rendezvous::throw_absent(int rank) const {
  require_answers();
  const std::vector<int> absent = control_ ? control_->blame({rank}) : std::vector<int>{rank};
  std::ostringstream text;
  text << "group " << group_ << ": ";
  for (std::size_t i = 0; i < absent.size(); ++i) text << (i ? ", " : "") << rank_name(absent[i], job_ranks_);
  text << " did not join in " << deadline_.seconds() << " s";
  TimeoutError error(text.str());
  error.set_ranks(absent);
  throw error;
}

std::string Rendezvous::get(const std::string& key, int rank) {
  std::string value;
  for (;;) {
    const milliseconds slice = std::max(deadline_.left(kSlice), milliseconds(1));
    if (try_get(key, slice, value)) return value;
    if (control_) control_->set_awaited(0, {rank});
    try {
      check();
    } catch (const PeerError&) {
      if (try_get(key, kLastLook, value)) return value;
      throw;
    }
    if (deadline_.passed()) throw_absent(rank);
  }
}

}  // namespace smddp
