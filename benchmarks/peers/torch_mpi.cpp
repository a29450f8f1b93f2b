// An MPI as a back end of torch.distributed: what a call through torch and Python costs beside the library's own work
// is then the same for it as for the others. Operations run on the calling thread, which is the least that a back end
// can cost; torch's own for MPI, which its wheels lack, hands each to another thread.
#include <mpi.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <utility>
#include <vector>

namespace {

class Done final : public c10d::Work {
 public:
  Done() { finish(); }
  bool wait(std::chrono::milliseconds) override { return true; }
};

float* data_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous(), "contiguous tensors of float32 only");
  return tensor.mutable_data_ptr<float>();
}

int count_of(const at::Tensor& tensor) { return static_cast<int>(tensor.numel()); }

class Mpi final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Backend::Backend;

  const std::string getBackendName() const override { return "mpi_here"; }

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    return after(MPI_Allreduce(MPI_IN_PLACE, data_of(tensors.at(0)), count_of(tensors.at(0)), MPI_FLOAT, MPI_SUM,
                               MPI_COMM_WORLD));
  }
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return after(MPI_Bcast(data_of(tensors.at(0)), count_of(tensors.at(0)), MPI_FLOAT,
                           static_cast<int>(options.rootRank), MPI_COMM_WORLD));
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return after(MPI_Allgather(data_of(input), count_of(input), MPI_FLOAT, data_of(output), count_of(input), MPI_FLOAT,
                               MPI_COMM_WORLD));
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions&) override {
    return after(MPI_Reduce_scatter_block(data_of(input), data_of(output), count_of(output), MPI_FLOAT, MPI_SUM,
                                          MPI_COMM_WORLD));
  }

 private:
  static Work after(int code) {
    TORCH_CHECK(code == MPI_SUCCESS, "MPI: error ", code);
    return c10::make_intrusive<Done>();
  }
};

std::pair<int, int> start() {
  MPI_Init(nullptr, nullptr);
  std::pair<int, int> place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.first);
  MPI_Comm_size(MPI_COMM_WORLD, &place.second);
  return place;
}

}  // namespace

PYBIND11_MODULE(torch_mpi, module) {
  module.def("start", start, "Starts MPI; (rank, number of ranks).");
  module.def("finish", [] { MPI_Finalize(); });
  module.def("create", [](const py::object&, int rank, int size, const std::chrono::milliseconds&) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<Mpi>(rank, size));
  });
}
