// An accelerator for tests, as torch's "PrivateUse1" device: memory of the host behind streams that really are
// asynchronous.
//
// Everything enqueued on a stream waits a while and then runs on the stream's own thread. Freed memory is overwritten
// once the streams that it was recorded on have done with it. So whoever forgets to wait for an event, to record a
// tensor on a stream or to wait for a copy reads the wrong numbers: that is the purpose of this device.
//
// What NCCL is for GPUs, FakeNccl is for it: operations that run on the stream, and of which the host only hears.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kStreams = 8;
constexpr std::chrono::milliseconds kDelay{20};

// A stream: a queue and the thread that works it off. Never destroyed: a device outlives the program.
class Queue {
 public:
  Queue() : thread_([this] { work(); }) { thread_.detach(); }

  void push(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++pushed_;
    changed_.notify_all();
  }

  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t until = pushed_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }

  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == pushed_;
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
      task = nullptr;
      const std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  std::thread thread_;
};

Queue& queue(c10::StreamId id) {
  static auto* const queues = new std::array<Queue, kStreams>;
  return (*queues)[static_cast<std::size_t>(id)];
}

thread_local c10::StreamId current_stream = 0;
bool capturing = false;

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;

  void reach() {
    const std::lock_guard<std::mutex> lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
};
using Event = std::shared_ptr<Mark>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream stream(c10::StreamId id) const { return c10::Stream(c10::Stream::UNSAFE, getDevice(), id); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(kStreams - 1); }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    return stream(std::exchange(current_stream, next.id()));
  }
  bool queryStream(const c10::Stream& one) const override { return queue(one.id()).idle(); }
  void synchronizeStream(const c10::Stream& one) const override { queue(one.id()).drain(); }
  bool isStreamCapturing(const c10::Stream&) const override { return capturing; }

  void record(void** event, const c10::Stream& one, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    const Event mark = std::make_shared<Mark>();
    *static_cast<Event*>(*event) = mark;
    queue(one.id()).push([mark] { mark->reach(); });
  }
  void block(void* event, const c10::Stream& one) const override {
    if (!event) return;
    queue(one.id()).push([mark = *static_cast<Event*>(event)] { mark->wait(); });
  }
  bool queryEvent(void* event) const override {
    const Event mark = *static_cast<Event*>(event);
    const std::lock_guard<std::mutex> lock(mark->mutex);
    return mark->reached;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

int recorded = 0;  // calls of record_stream; under Memory::mutex()

// Like a caching allocator: memory comes from the current stream and may be used again, by that stream, as soon as it
// is freed; what else uses it must have been recorded.
struct Memory final : c10::Allocator {
  struct Block {
    std::size_t bytes;
    c10::StreamId owner;
    std::vector<c10::StreamId> users;
  };
  static std::mutex& mutex() {
    static auto* const instance = new std::mutex;
    return *instance;
  }
  static std::map<void*, Block>& blocks() {
    static auto* const instance = new std::map<void*, Block>;
    return *instance;
  }

  static void release(void* pointer) {
    if (!pointer) return;
    Block block;
    {
      const std::lock_guard<std::mutex> lock(mutex());
      block = blocks().at(pointer);
      blocks().erase(pointer);
    }
    // The owner's next user comes behind what the owner has enqueued, and behind recorded users. Nobody waits here: the
    // interpreter is held, and a stream's thread may need it to let go of a tensor.
    std::vector<Event> ends;
    for (const c10::StreamId user : block.users) {
      ends.push_back(std::make_shared<Mark>());
      queue(user).push([end = ends.back()] { end->reach(); });
    }
    queue(block.owner).push([pointer, bytes = block.bytes, ends] {
      for (const Event& end : ends) end->wait();
      std::memset(pointer, 0xEE, bytes);  // leaked: a late writer must not hit foreign memory
    });
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* pointer = bytes ? std::malloc(bytes) : nullptr;
    if (pointer) {
      const std::lock_guard<std::mutex> lock(mutex());
      blocks()[pointer] = {bytes, current_stream, {}};
    }
    return {pointer, pointer, &release, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kType, &memory);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

// The bytes of a tensor as the CPU sees them. Does not keep a device's memory alive, as a kernel does not.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Queue& stream = queue(current_stream);
  stream.push([source = on_host(from), target = on_host(to)]() mutable {
    std::this_thread::sleep_for(kDelay);
    at::AutoDispatchBelowAutograd below;
    target.copy_(source);
  });
  if (!non_blocking) stream.drain();
  return to;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  const std::lock_guard<std::mutex> lock(Memory::mutex());
  const auto block = Memory::blocks().find(tensor.storage().mutable_data());
  TORCH_CHECK(block != Memory::blocks().end(), "record_stream of a tensor that is not the device's");
  block->second.users.push_back(stream.id());
  ++recorded;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", [](const at::Tensor& tensor, at::IntArrayRef sizes) { return at::native::view(tensor, sizes); });
  library.impl("_copy_from", copy_from);
  library.impl("record_stream", record_stream);
}

// It takes no time to be waited for: the caller's stream carries it out.
struct OnStream final : c10d::Work {
  OnStream() : Work(-1, c10d::OpType::UNKNOWN) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// The operations of another back end on the host's view of the tensors, on the current stream. Like NCCL's they stay
// there for ever when a rank does not come, until abort().
class FakeNccl final : public c10d::Backend {
 public:
  explicit FakeNccl(c10::intrusive_ptr<c10d::Backend> other)
      : Backend(other->getRank(), other->getSize()), other_(std::move(other)) {}

  const std::string getBackendName() const override { return "fake_nccl"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return enqueue(options.asyncOp, [tensors = views(tensors), options](Backend& other) mutable {
      other.allreduce(tensors, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return enqueue(options.asyncOp, [out = on_host(output), in = on_host(input), options](Backend& other) mutable {
      at::Tensor mine = in.clone();  // it may be part of `out`
      other._allgather_base(out, mine, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    return enqueue(options.asyncOp, [out = on_host(output), in = on_host(input), options](Backend& other) mutable {
      // Gathered and added here: the other back end averages nothing.
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < other.getSize(); ++rank) all.push_back(at::empty_like(in));
      std::vector<std::vector<at::Tensor>> lists{all};
      std::vector<at::Tensor> mine{in.clone()};
      other.allgather(lists, mine)->wait();
      at::Tensor sum = lists[0][0];
      for (std::size_t i = 1; i < lists[0].size(); ++i) sum = join(sum, lists[0][i], options.reduceOp);
      if (options.reduceOp == c10d::ReduceOp::AVG) sum = sum / other.getSize();
      out.copy_(sum.narrow(0, other.getRank() * out.numel(), out.numel()));
    });
  }
  void abort() override { other_->abort(); }

 private:
  static at::Tensor join(const at::Tensor& a, const at::Tensor& b, const c10d::ReduceOp& op) {
    if (op == c10d::ReduceOp::MAX) return at::maximum(a, b);
    if (op == c10d::ReduceOp::MIN) return at::minimum(a, b);
    return op == c10d::ReduceOp::PRODUCT ? a * b : a + b;
  }
  static std::vector<at::Tensor> views(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : tensors) all.push_back(on_host(tensor));
    return all;
  }
  // As of NCCL's: nothing to wait for where the caller's stream is the operation's.
  c10::intrusive_ptr<c10d::Work> enqueue(bool asynchronous, std::function<void(Backend&)> operation) {
    queue(current_stream).push([other = other_, operation = std::move(operation)] {
      std::this_thread::sleep_for(kDelay);
      at::AutoDispatchBelowAutograd below;
      try {
        operation(*other);
      } catch (const std::exception&) {  // aborted
      }
    });
    if (!asynchronous) return {};
    return c10::make_intrusive<OnStream>();
  }

  c10::intrusive_ptr<c10d::Backend> other_;
};

}  // namespace

PYBIND11_MODULE(fake_device, module) {
  pybind11::module_::import("torch.distributed");
  module.def("nccl", [](const c10::intrusive_ptr<c10d::Backend>& other) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<FakeNccl>(other));
  });
  module.def("set_stream", [](int id) { current_stream = id; });
  module.def("synchronize", [] {
    pybind11::gil_scoped_release release;
    for (c10::StreamId id = 0; id < kStreams; ++id) queue(id).drain();
  });
  module.def("hold", [](int id) {
    const Event gate = std::make_shared<Mark>();
    queue(id).push([gate] { gate->wait(); });
    return pybind11::cpp_function([gate] { gate->reach(); });
  });
  module.def("recorded", [] {
    const std::lock_guard<std::mutex> lock(Memory::mutex());
    return recorded;
  });
  module.def("idle", [](int id) { return queue(id).idle(); });
  module.def("capture", [](bool on) { capturing = on; });
}
