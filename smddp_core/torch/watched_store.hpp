// A rendezvous store for back ends that wait in it and know nothing of our connections.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compat.hpp"

namespace smddp::torch_binding {

/// Passes everything on, and calls `watch` while it waits for a key: what that throws ends the waiting.
///
/// No `override` below: some of these are not virtual in every torch release.
class WatchedStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;
  using Keys = std::vector<std::string>;
  using Milliseconds = std::chrono::milliseconds;

  WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> watch);

  /// From now on it only passes on.
  void unwatch() { watching_ = false; }

  c10::intrusive_ptr<c10d::Store> clone();
  void set(const std::string& key, const Bytes& value);
  Bytes compareSet(const std::string& key, const Bytes& current, const Bytes& wanted);
  Bytes get(const std::string& key);
  int64_t add(const std::string& key, int64_t value);
  bool deleteKey(const std::string& key);
  bool check(const Keys& keys);
  int64_t getNumKeys();
  void wait(const Keys& keys);
  void wait(const Keys& keys, const Milliseconds& timeout);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::function<void()> watch_;
  std::atomic<bool> watching_{true};
};

}  // namespace smddp::torch_binding
