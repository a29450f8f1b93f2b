#include "watched_store.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace smddp::torch_binding {

WatchedStore::WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> watch)
    : store_(std::move(store)), watch_(std::move(watch)) {
  timeout_ = store_->getTimeout();
}

c10::intrusive_ptr<c10d::Store> WatchedStore::clone() {
  return c10::make_intrusive<WatchedStore>(clone_of(*store_, 0), watch_);
}

void WatchedStore::set(const std::string& key, const Bytes& value) { store_->set(key, value); }

WatchedStore::Bytes WatchedStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  return store_->compareSet(key, current, wanted);
}

WatchedStore::Bytes WatchedStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

int64_t WatchedStore::add(const std::string& key, int64_t value) { return store_->add(key, value); }
bool WatchedStore::deleteKey(const std::string& key) { return store_->deleteKey(key); }
bool WatchedStore::check(const Keys& keys) { return store_->check(keys); }
int64_t WatchedStore::getNumKeys() { return store_->getNumKeys(); }
void WatchedStore::wait(const Keys& keys) { wait(keys, timeout_); }

// check() again and again, as in StoreAdapter.
void WatchedStore::wait(const Keys& keys, const Milliseconds& timeout) {
  constexpr Milliseconds kLongestNap{20};
  const auto until = std::chrono::steady_clock::now() + timeout;
  Milliseconds nap{1};
  while (watching_ && !store_->check(keys)) {
    watch_();
    TORCH_CHECK(std::chrono::steady_clock::now() < until, "the store has no '", keys.empty() ? "" : keys[0], "' after ",
                timeout.count(), " ms");
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
  if (!watching_) store_->wait(keys, timeout);
}

}  // namespace smddp::torch_binding
