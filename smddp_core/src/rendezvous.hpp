// The store, for ranks that also know how the others are: waiting for a value ends when a rank is gone.
#pragma once

#include <string>
#include <vector>

#include "smddp/deadline.hpp"
#include "smddp/store.hpp"
#include "transport/control.hpp"

namespace smddp {

class Rendezvous {
 public:
  /// @param group for messages.
  Rendezvous(Store& store, std::string group, std::chrono::milliseconds timeout)
      : store_(store), group_(std::move(group)), deadline_(timeout) {}

  const Deadline& deadline() const { return deadline_; }

  /// From now on, waiting ends with the first failure that `control` learns of.
  void watch(Control* control) { control_ = control; }

  void set(const std::string& key, const std::string& value) { store_.set(key, value); }

  /// Waits for `key`, which `rank` writes.
  /// @throws TimeoutError naming `rank` at the deadline; PeerError when a watched rank is gone; what the store throws
  /// when it fails.
  std::string get(const std::string& key, int rank);

  /// Throws when a rank that is watched has failed or gone.
  void check() const;

 private:
  bool try_get(const std::string& key, std::chrono::milliseconds patience, std::string& value);

  Store& store_;
  const std::string group_;
  Deadline deadline_;
  Control* control_ = nullptr;
};

}  // namespace smddp
