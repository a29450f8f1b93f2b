#include "device_watch.hpp"

#include <chrono>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp::torch_binding {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

DeviceWatch::DeviceWatch(std::shared_ptr<Communicator> communicator, std::function<void()> abort)
    : communicator_(std::move(communicator)), abort_(std::move(abort)), thread_([this] { look_after(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::look_after() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return over_; })) {
    lock.unlock();
    try {
      communicator_->check_alive("an operation on a GPU", 0);
    } catch (const Error& cause) {
      // First what it will be said to have been: whoever NCCL lets go asks at once.
      try {
        communicator_->fail(cause);
      } catch (const Error&) {
      }
      return abort_();
    }
    lock.lock();
  }
}

}  // namespace smddp::torch_binding
