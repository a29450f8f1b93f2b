// The store, for ranks that also know how the others are: waiting for a value ends when a rank is gone.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "smddp/deadline.hpp"
#include "smddp/store.hpp"
#include "transport/control.hpp"

namespace smddp {

/// See Rendezvous::check_root().
struct RootChanged {};

class Rendezvous {
 public:
  /// @param group,job_ranks for messages.
  Rendezvous(Store& store, std::string group, std::vector<int> job_ranks, std::chrono::milliseconds timeout)
      : store_(store), group_(std::move(group)), job_ranks_(std::move(job_ranks)), deadline_(timeout) {}

  const Deadline& deadline() const { return deadline_; }

  /// From now on, waiting ends with the first failure that `control` learns of.
  void watch(Control* control) { control_ = control; }

  /// From now on, waiting ends with what `look` throws.
  void watch(std::function<void()> look) { look_ = std::move(look); }

  /// Rank 0's first word, under a key that is the same for every group that meets here. A group that has met takes its
  /// word back, by close(): what an earlier one left is not taken for this one's.
  void open(const std::string& root) { put(kRoot, root); }
  void close() { put(kRoot, kTaken); }

  /// Rank 0's first and last word, for it cannot start at all. Never throws.
  void refuse(const std::string& reason);

  /// Waits for rank 0's first word.
  /// @throws PeerError if that is a refusal. An earlier group's may still be there: a while is given to the new rank 0.
  std::string root();

  /// Throws RootChanged if rank 0's first word is another one than `known` now: that was one of an earlier group, which
  /// never met.
  void check_root(const std::string& known);

  /// Tells rank 0 why `rank`, which has no lifeline yet, will not come, if rank 0 has spoken or does in `patience`.
  /// Never throws.
  void excuse(int rank, const std::string& reason, std::chrono::milliseconds patience);

  /// For rank 0, whose first word was `root`: throws PeerError if a rank has excused itself.
  void check_excuses(const std::string& root);

  /// From now on keys are those of one group alone, whatever earlier ones have left in the store.
  void enter(const std::string& prefix) { prefix_ = prefix + "/"; }

  /// @throws PeerError when a watched rank is gone, TimeoutError when the store does not answer before the deadline,
  /// what the store throws when it fails for another reason.
  void set(const std::string& key, const std::string& value) { put(prefix_ + key, value); }

  /// Waits for `key`, which `rank` writes.
  /// @throws TimeoutError at the deadline, naming `rank` or, if that waits itself, those it waits for; PeerError when a
  /// watched rank is gone; what the store throws when it fails.
  std::string get(const std::string& key, int rank);

  /// Throws when a rank that is watched has failed or gone.
  void check() const;

 private:
  static constexpr char kRoot[] = "root";
  static constexpr char kTaken[] = "taken";
  static constexpr char kRefused[] = "refused ";
  static constexpr char kExcuse[] = "excuse/";

  void check_met() const;
  void put(const std::string& key, const std::string& value);
  void throw_cause() const;
  void require_answers() const;
  [[noreturn]] void throw_absent(int rank) const;
  [[noreturn]] void throw_excused(int rank, const std::string& reason) const;
  bool try_get(const std::string& key, std::chrono::milliseconds patience, std::string& value);

  Store& store_;
  const std::string group_;
  const std::vector<int> job_ranks_;
  std::string prefix_;
  Deadline deadline_;
  Control* control_ = nullptr;
  std::function<void()> look_;
};

}  // namespace smddp
