// torch's rendezvous store behind the core's interface.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compat.hpp"
#include "smddp/errors.hpp"
#include "smddp/store.hpp"

namespace smddp::torch_binding {

class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  // Stores differ in the exception they time out with; all of them derive from c10::Error.
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      store_->wait({key}, timeout);
      const std::vector<std::uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    } catch (const c10::Error& error) {
      throw TimeoutError("smddp: the store has no '" + key + "': " + error.what_without_backtrace());
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace smddp::torch_binding
