// Operations on a device that must hear of what befalls the group.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// NCCL's kernels wait on the GPU for a rank that was killed until the group's timeout, and whoever waits for the GPU
/// with them. While this lives, a thread looks after the group some times a second; when it is dead, or a rank has
/// died, the thread ends the group with that error and calls `abort`, which lets go of the GPU.
class DeviceWatch {
 public:
  DeviceWatch(std::shared_ptr<Communicator> communicator, std::function<void()> abort);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

 private:
  void look_after();

  const std::shared_ptr<Communicator> communicator_;
  const std::function<void()> abort_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace smddp::torch_binding
