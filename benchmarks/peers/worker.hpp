// One rank of a library that is not reached through torch: obeys the driver's commands until the channel closes.
// The protocol is described in harness/job.py; torch_worker.py is its other implementation.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "payload.hpp"

namespace worker {

/// The library under test. `bytes`-sized messages are float32; `count` is in elements.
struct Collectives {
  virtual ~Collectives() = default;
  virtual void all_reduce(float* data, std::size_t count) = 0;
  /// Each rank gives `count` elements and gets ranks x count.
  virtual void all_gather(const float* input, float* output, std::size_t count) = 0;
  /// Each rank gives ranks x count elements and gets `count`.
  virtual void reduce_scatter(const float* input, float* output, std::size_t count) = 0;
  virtual void broadcast(float* data, std::size_t count) = 0;
};

struct FreeDeleter {
  void operator()(float* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<float, FreeDeleter>;

inline Buffer allocate(std::size_t elements) {
  const std::size_t page = 4096;
  const std::size_t bytes = (elements * sizeof(float) + page - 1) / page * page;
  return Buffer(static_cast<float*>(std::aligned_alloc(page, bytes)));
}

/// One operation on buffers of one size: `bytes` is the whole message, of which gathers and scatters have a part.
class Exercise {
 public:
  Exercise(Collectives& library, std::string name, std::size_t bytes, int rank, int ranks, double roundoff)
      : library_(library), name_(std::move(name)), rank_(rank), ranks_(ranks), roundoff_(roundoff) {
    count_ = bytes / sizeof(float);
    part_ = count_ / static_cast<std::size_t>(ranks);
    first_ = part_ * static_cast<std::size_t>(rank);
    main_ = allocate(count_);
    if (name_ == "all_gather" || name_ == "reduce_scatter") small_ = allocate(part_);
  }

  void fill() {
    if (name_ == "all_gather") {
      std::memset(main_.get(), 0, count_ * sizeof(float));
      payload_fill(small_.get(), first_, part_, rank_);
    } else if (name_ == "broadcast" && rank_ != 0) {
      std::memset(main_.get(), 0, count_ * sizeof(float));
    } else {
      payload_fill(main_.get(), 0, count_, rank_);
    }
  }

  void zero() {
    std::memset(main_.get(), 0, count_ * sizeof(float));
    if (small_) std::memset(small_.get(), 0, part_ * sizeof(float));
  }

  void run() {
    if (name_ == "all_reduce") return library_.all_reduce(main_.get(), count_);
    if (name_ == "all_gather") return library_.all_gather(small_.get(), main_.get(), part_);
    if (name_ == "reduce_scatter") return library_.reduce_scatter(main_.get(), small_.get(), part_);
    return library_.broadcast(main_.get(), count_);
  }

  std::size_t wrong() const {
    if (name_ == "all_reduce") return payload_check_sum(main_.get(), 0, count_, ranks_, roundoff_);
    if (name_ == "reduce_scatter") return payload_check_sum(small_.get(), first_, part_, ranks_, roundoff_);
    if (name_ == "broadcast") return payload_check_copy(main_.get(), 0, count_, 0);
    std::size_t found = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::size_t start = part_ * static_cast<std::size_t>(rank);
      found += payload_check_copy(main_.get() + start, start, part_, rank);
    }
    return found;
  }

 private:
  Collectives& library_;
  std::string name_;
  int rank_;
  int ranks_;
  double roundoff_;
  std::size_t count_ = 0;  // Elements of the whole message.
  std::size_t part_ = 0;   // Elements of one rank's part of it.
  std::size_t first_ = 0;  // Where this rank's part begins.
  Buffer main_;
  Buffer small_;
};

/// Of the clock that all processes of the machine share.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// CPU seconds of all threads of this process.
inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Brings the ranks together before the clock starts, by the library's own means.
inline void meet(Collectives& library) {
  float none[16] = {};
  library.all_reduce(none, 16);
}

inline std::string measure(Collectives& library, std::istringstream& words, int rank, int ranks) {
  std::string operation;
  std::size_t bytes = 0;
  double roundoff = 0;
  int iterations = 0;
  int batches = 0;
  int check_again = 0;
  int meet_once = 0;
  words >> operation >> bytes >> roundoff >> iterations >> batches >> check_again >> meet_once;
  Exercise exercise(library, operation, bytes, rank, ranks, roundoff);
  exercise.fill();
  exercise.run();
  std::size_t wrong = exercise.wrong();
  exercise.zero();
  // What a library sets up the first times that it sees a buffer is no part of an operation on one that lives for long.
  exercise.run();
  std::ostringstream clock;
  clock << std::fixed << std::setprecision(9);
  double cpu = 0;
  for (int batch = 0; batch < batches; ++batch) {
    if (batch == 0 || !meet_once) meet(library);
    const double cpu_before = cpu_seconds();
    const double start = now();
    for (int i = 0; i < iterations; ++i) exercise.run();
    clock << ' ' << start << ' ' << now();
    cpu += cpu_seconds() - cpu_before;
  }
  if (check_again) {
    exercise.fill();
    exercise.run();
    wrong += exercise.wrong();
  }
  std::ostringstream reply;
  reply << "ok " << wrong << ' ' << (batches ? cpu / batches / iterations : 0) << clock.str();
  return reply.str();
}

/// Rank 0 comes `seconds` late to an all-reduce: what do the others burn meanwhile?
inline std::string wait_for_late(Collectives& library, std::istringstream& words, int rank) {
  std::size_t bytes = 0;
  double seconds = 0;
  words >> bytes >> seconds;
  const Buffer data = allocate(bytes / sizeof(float));
  std::memset(data.get(), 0, bytes);
  meet(library);
  const double cpu = cpu_seconds();
  const double start = now();
  if (rank == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  library.all_reduce(data.get(), bytes / sizeof(float));
  std::ostringstream reply;
  reply << "ok 0 " << cpu_seconds() - cpu << ' ' << now() - start;
  return reply.str();
}

/// Obeys commands until the driver closes the channel.
inline void serve(Collectives& library, int rank, int ranks) {
  const std::string folder = std::getenv("BENCH_CHANNEL");
  std::ifstream commands(folder + "/in." + std::to_string(rank));
  std::ofstream replies(folder + "/out." + std::to_string(rank));
  replies << "ready " << getpid() << std::endl;
  std::string line;
  while (std::getline(commands, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "quit") return;
    replies << (verb == "wait" ? wait_for_late(library, words, rank) : measure(library, words, rank, ranks))
            << std::endl;
  }
  // The driver is gone: end at once, whatever the other ranks do.
  std::_Exit(3);
}

}  // namespace worker
