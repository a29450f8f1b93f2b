// torch's rendezvous store behind the core's interface.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "compat.hpp"
#include "smddp/errors.hpp"
#include "smddp/store.hpp"

namespace smddp::torch_binding {

class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    asking([&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  // check() again and again instead of wait(): torch's TCP store writes warnings for each wait() that times out, and
  // whoever waits here looks at its peers several times a second.
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    constexpr std::chrono::milliseconds kLongestNap{20};
    const auto until = std::chrono::steady_clock::now() + timeout;
    std::chrono::milliseconds nap{1};
    while (!asking([&] { return store_->check({key}); })) {
      if (std::chrono::steady_clock::now() >= until) throw TimeoutError("smddp: the store has no '" + key + "'");
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongestNap);
    }
    const std::vector<std::uint8_t> value = asking([&] { return store_->get(key); });
    return std::string(value.begin(), value.end());
  }

 private:
  template <class Request>
  auto asking(Request request) -> decltype(request()) {
    try {
      return request();
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::system, std::string("smddp: the store, which rank 0 or the launcher keeps, fails: ") +
                                         error.what_without_backtrace());
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace smddp::torch_binding
