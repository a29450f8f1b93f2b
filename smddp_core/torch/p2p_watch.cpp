#include "p2p_watch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/birthplace.hpp"
#include "smddp/errors.hpp"

namespace smddp::torch_binding {

// One for the process, never destroyed: its thread ends with the process. The child of a fork, which has no such
// thread, gets one of its own.
class P2pWatcher {
 public:
  static P2pWatcher& instance() {
    static std::atomic<P2pWatcher*> current{new P2pWatcher};
    P2pWatcher* watcher = current;
    if (!watcher->birthplace_.here()) {
      auto* const fresh = new P2pWatcher;
      watcher = current.compare_exchange_strong(watcher, fresh) ? fresh : current.load();
    }
    return *watcher;
  }

  void add(P2pWatch* watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watches_.push_back(watch);
    if (std::exchange(started_, true)) return;
    std::thread([this] { look_after(); }).detach();
  }

  void remove(P2pWatch* watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watches_.erase(std::remove(watches_.begin(), watches_.end(), watch), watches_.end());
  }

  bool aborted(const P2pWatch& watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return watch.aborted_;
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{100};
  static constexpr int kLooksBeforeTelling = 3;

  // Not woken by add(): that would cost every message more than ten looks a second cost a core.
  void look_after() {
    for (;;) {
      std::this_thread::sleep_for(kInterval);
      const std::lock_guard<std::mutex> lock(mutex_);
      for (P2pWatch* watch : watches_) look_at(*watch);
    }
  }

  static void look_at(P2pWatch& watch) {
    if (watch.aborted_) return;
    try {
      if (++watch.looks_ == kLooksBeforeTelling) {
        watch.communicator_.awaits(watch.message_);
        watch.told_ = true;
      }
      watch.communicator_.check_alive(watch.title_);
      if (watch.any_) watch.communicator_.check_others(watch.title_);
    } catch (const Error&) {
      watch.aborted_ = true;
      abort(watch.work_);
    }
  }

  // Work that cannot be aborted ends by its own timeout.
  static void abort(WorkBase& work) {
    try {
      work.abort();
    } catch (...) {
    }
  }

  const Birthplace birthplace_;
  std::mutex mutex_;
  std::vector<P2pWatch*> watches_;
  bool started_ = false;
};

P2pWatch::P2pWatch(WorkBase& work, Communicator& communicator, std::string title, PeerMessage message, bool any)
    : work_(work), communicator_(communicator), title_(std::move(title)), message_(std::move(message)), any_(any) {
  P2pWatcher::instance().add(this);
}

P2pWatch::~P2pWatch() {
  P2pWatcher::instance().remove(this);
  if (told_) communicator_.stops_awaiting(message_);
}

bool P2pWatch::aborted() const { return P2pWatcher::instance().aborted(*this); }

}  // namespace smddp::torch_binding
