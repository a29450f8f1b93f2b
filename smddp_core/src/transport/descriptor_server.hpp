// File descriptors handed from process to process over an abstract Unix socket (which has no file to leave behind).
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "smddp/deadline.hpp"
#include "transport/connect.hpp"
#include "transport/socket.hpp"

namespace smddp {

/// Listens in a thread of its own and answers each process of the same user that sends the nonce with a copy of the
/// descriptor. Others are turned away.
class DescriptorServer {
 public:
  /// @param fd stays the caller's. @throws Error when the socket cannot be made.
  DescriptorServer(int fd, const Nonce& nonce);
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  /// Name of the socket, without its leading zero byte.
  const std::string& name() const { return name_; }

 private:
  void serve();
  void answer(const Socket& client);

  Socket shared_;  // a duplicate
  const Nonce nonce_;
  std::string name_;
  Socket listener_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// The descriptor behind `name`; the caller closes it. @throws Error when nobody answers before the deadline.
int receive_descriptor(const std::string& name, const Nonce& nonce, const Deadline& deadline);

}  // namespace smddp
