#include "p2p_watch.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "smddp/errors.hpp"

namespace smddp::torch_binding {

// One for the process, never destroyed: its thread ends with the process. In the child of a fork there is no thread,
// and no operation that would need it.
class P2pWatcher {
 public:
  static P2pWatcher& instance() {
    static P2pWatcher* const watcher = new P2pWatcher;
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
      watch.communicator_.check_alive(watch.title_, 0);
    } catch (const Error&) {
      watch.aborted_ = true;
      watch.work_.abort();
    }
  }

  std::mutex mutex_;
  std::vector<P2pWatch*> watches_;
  bool started_ = false;
};

P2pWatch::P2pWatch(WorkBase& work, const Communicator& communicator, std::string title)
    : work_(work), communicator_(communicator), title_(std::move(title)) {
  P2pWatcher::instance().add(this);
}

P2pWatch::~P2pWatch() { P2pWatcher::instance().remove(this); }

bool P2pWatch::aborted() const { return P2pWatcher::instance().aborted(*this); }

}  // namespace smddp::torch_binding
