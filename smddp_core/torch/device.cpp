#include "device.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#if !SMDDP_TORCH_AT_LEAST(2, 13)
#include <torch/csrc/utils/pybind.h>
#endif

namespace smddp::torch_binding {
namespace {

using c10::impl::VirtualGuardImpl;

bool is_capturing_on(const c10::Stream& stream) {
#if SMDDP_TORCH_AT_LEAST(2, 13)
  return VirtualGuardImpl(stream.device_type()).isStreamCapturing(stream);
#else
  if (stream.device_type() != c10::DeviceType::CUDA) return false;
  const pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("torch.cuda").attr("is_current_stream_capturing")().cast<bool>();
#endif
}

}  // namespace

Optional<c10::Device> common_device(at::TensorList tensors) {
  if (tensors.empty()) return {};
  const c10::Device device = tensors[0].device();
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.device() == device, "smddp: tensors of one operation must be on one device: ", device,
                      " and ", tensor.device());
  if (device.is_cpu()) return {};
  TORCH_CHECK_NOT_IMPLEMENTED(device.type() != c10::DeviceType::Meta, "smddp: tensors on ", device,
                              " have no data to exchange: CPU and GPU "
                              "tensors have");
  return device;
}

bool is_capturing(c10::Device device) { return is_capturing_on(VirtualGuardImpl(device.type()).getStream(device)); }

DeviceCall::DeviceCall(c10::Stream stream)
    : stream_(stream), ready_(stream.device_type()), done_(stream.device_type()) {
  const c10::Stream current = VirtualGuardImpl(stream.device_type()).getStream(stream.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_capturing_on(current),
      "smddp: collectives cannot be part of a CUDA graph, for the host takes part in them: call "
      "them outside of torch.cuda.graph(), or use init_process_group(\"nccl\")");
  ready_.record(current);
}

void DeviceCall::begin() { ready_.block(stream_); }

void DeviceCall::end(const std::vector<at::Tensor>& tensors) {
  done_.record(stream_);
  for (at::Tensor tensor : tensors)
    if (tensor.numel() > 0) tensor.record_stream(stream_);
}

void DeviceCall::block_current_stream() {
  done_.block(VirtualGuardImpl(stream_.device_type()).getStream(stream_.device()));
}

c10::Stream DeviceStreams::of(c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const c10::Stream& stream : streams_)
    if (stream.device() == device) return stream;
  streams_.push_back(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true));
  return streams_.back();
}

void synchronize_current_stream(c10::Device device) {
  const VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

at::Tensor empty_staging(const at::Tensor& like) {
  const auto options = at::TensorOptions().dtype(like.scalar_type());
  try {
    return at::empty(like.sizes(), options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty(like.sizes(), options);
  }
}

}  // namespace smddp::torch_binding
