// Tensors on a device (a GPU): their place in the order of streams, for operations that a host thread carries out.
//
// Nothing here is CUDA's own: c10's guards, streams and events reach whatever device a torch build has, so that one
// binary serves CPU and CUDA builds alike.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <vector>

#include "compat.hpp"

namespace smddp::torch_binding {

/// The one device of `tensors`, nothing if they are on the CPU. @throws ValueError if they are on several.
Optional<c10::Device> common_device(at::TensorList tensors);

/// One operation's place on a device.
///
/// The caller's thread only marks its current stream. The thread that carries the operation out copies on the group's
/// stream, which waits for that mark, and marks its own end. Whoever waits for the operation makes its current stream
/// wait for that end: no host thread waits for the device but the group's own, for copies that have arrived.
class DeviceCall {
 public:
  /// Caller's thread. @throws NotImplementedError while a graph is captured: a replay would not call the host.
  explicit DeviceCall(c10::Stream stream);

  c10::Stream stream() const { return stream_; }

  /// Makes the group's stream wait for what the caller had enqueued. @pre the group's stream is current.
  void begin();

  /// Marks the end of what is enqueued, and keeps the memory of `tensors` from being reused before it.
  /// @pre the group's stream is current.
  void end(const std::vector<at::Tensor>& tensors);

  /// Makes the current stream wait for the end. Any thread; after end().
  void block_current_stream();

 private:
  c10::Stream stream_;
  c10::Event ready_;
  c10::Event done_;
};

/// The streams of a group, one a device, made when first needed.
class DeviceStreams {
 public:
  c10::Stream of(c10::Device device);

 private:
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

/// Whether a graph is being captured on the current stream of `device`.
bool is_capturing(c10::Device device);

/// Waits until everything on the current stream of `device` has been done.
void synchronize_current_stream(c10::Device device);

/// Host memory from which the device copies without the host's help, if the device has such; else ordinary memory.
at::Tensor empty_staging(const at::Tensor& like);

}  // namespace smddp::torch_binding
