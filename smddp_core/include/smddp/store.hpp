// What the library needs of a rendezvous store: the binding adapts torch's, tests keep one in memory.
#pragma once

#include <chrono>
#include <string>

namespace smddp {

class Store {
 public:
  virtual ~Store() = default;

  /// Makes `value` visible to all ranks under `key`, in place of what was there. @throws TimeoutError when the store is
  /// silent(): may be repeated.
  virtual void set(const std::string& key, const std::string& value) = 0;

  /// Waits for `key`. @throws TimeoutError when it does not appear in `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;

  /// Whether the last TimeoutError was for want of any answer. Stores that always answer, or wait themselves until they
  /// do, never are.
  virtual bool silent() const { return false; }
};

}  // namespace smddp
