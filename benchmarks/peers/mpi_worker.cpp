// A rank of any MPI. Compiled once for each, with that MPI's own compiler wrapper or header.
#include <mpi.h>

#include "worker.hpp"

namespace {

struct Mpi final : worker::Collectives {
  void all_reduce(float* data, std::size_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void all_gather(const float* input, float* output, std::size_t count) override {
    const int elements = static_cast<int>(count);
    MPI_Allgather(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, MPI_COMM_WORLD);
  }
  void reduce_scatter(const float* input, float* output, std::size_t count) override {
    MPI_Reduce_scatter_block(input, output, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* data, std::size_t count) override {
    MPI_Bcast(data, static_cast<int>(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Mpi mpi;
  worker::serve(mpi, rank, ranks);
  MPI_Finalize();
}
