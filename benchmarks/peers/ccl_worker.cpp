// A rank of oneCCL. RANK and WORLD_SIZE say which; rank 0 leaves its address in the channel's folder.
#include <oneapi/ccl.hpp>

#include "worker.hpp"

namespace {

struct Ccl final : worker::Collectives {
  explicit Ccl(ccl::communicator made) : communicator(std::move(made)) {}

  void all_reduce(float* data, std::size_t count) override {
    ccl::allreduce(data, data, count, ccl::datatype::float32, ccl::reduction::sum, communicator).wait();
  }
  void all_gather(const float* input, float* output, std::size_t count) override {
    const std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), count);
    ccl::allgatherv(input, count, output, counts, ccl::datatype::float32, communicator).wait();
  }
  void reduce_scatter(const float* input, float* output, std::size_t count) override {
    ccl::reduce_scatter(input, output, count, ccl::datatype::float32, ccl::reduction::sum, communicator).wait();
  }
  void broadcast(float* data, std::size_t count) override {
    ccl::broadcast(data, count, ccl::datatype::float32, 0, communicator).wait();
  }

  ccl::communicator communicator;
};

ccl::shared_ptr_class<ccl::kvs> meet(int rank) {
  const std::string file = std::string(std::getenv("BENCH_CHANNEL")) + "/ccl-address";
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    const auto address = store->get_address();
    std::ofstream(file + ".part", std::ios::binary).write(address.data(), static_cast<std::streamsize>(address.size()));
    std::rename((file + ".part").c_str(), file.c_str());
    return store;
  }
  ccl::kvs::address_type address;
  std::ifstream found;
  while (!found.is_open()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    found.open(file, std::ios::binary);
  }
  found.read(address.data(), static_cast<std::streamsize>(address.size()));
  return ccl::create_kvs(address);
}

}  // namespace

int main() {
  const int rank = std::atoi(std::getenv("RANK"));
  const int ranks = std::atoi(std::getenv("WORLD_SIZE"));
  ccl::init();
  Ccl library(ccl::create_communicator(ranks, rank, meet(rank)));
  worker::serve(library, rank, ranks);
}
