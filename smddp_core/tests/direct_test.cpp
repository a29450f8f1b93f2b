// Ranks that read one another's memory: what they may read, and what happens when it goes away.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "arenas.hpp"
#include "ranks.hpp"
#include "transport/arena.hpp"
#include "transport/peer_memory.hpp"

namespace smddp::testing {
namespace {

void always_direct(CommunicatorOptions& options) { options.env.shm_direct = When::always; }

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// Containers forbid it by default.
class PeerMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::uint64_t word = 42;
    if (!can_read({::getpid(), address_of(&word), word})) GTEST_SKIP() << "process_vm_readv is forbidden here";
  }
};
class DirectReads : public PeerMemory {};

TEST_F(PeerMemory, OfAnotherProcessIsReadAsItIsThere) {
  std::vector<int> data(100'000);
  std::iota(data.begin(), data.end(), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::vector<int> expected = data;
  std::fill(data.begin(), data.end(), -1);
  std::vector<int> found(data.size());
  EXPECT_EQ(read_memory_of(child, address_of(data.data()), found.data(), data.size() * sizeof(int)), 0);
  EXPECT_EQ(found, expected);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(read_memory_of(child, address_of(data.data()), found.data(), sizeof(int)), ESRCH);
}

TEST_F(PeerMemory, WhatIsNotThereIsAnError) {
  void* two = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(two, MAP_FAILED);
  ::munmap(static_cast<std::byte*>(two) + 4096, 4096);
  std::vector<std::byte> found(8192);
  EXPECT_EQ(read_memory_of(::getpid(), address_of(two), found.data(), 4096), 0);
  EXPECT_EQ(read_memory_of(::getpid(), address_of(two), found.data(), 8192), EFAULT) << "the second page is gone";
  ::munmap(two, 4096);
}

// A process of that number in another pid namespace is not the one that is meant.
TEST_F(PeerMemory, IsToldByItsProof) {
  const std::uint64_t word = 42;
  EXPECT_TRUE(can_read({::getpid(), address_of(&word), 42}));
  EXPECT_FALSE(can_read({::getpid(), address_of(&word), 43}));
  EXPECT_FALSE(can_read({::getpid(), 0, 42}));
  EXPECT_FALSE(can_read({99'999'999, address_of(&word), 42}));
}

TEST_F(DirectReads, GivesTheSameBitsAsSharedMemory) {
  const auto sums = [](When direct) {
    return rounded_sums(1, [direct](CommunicatorOptions& options) { options.env.shm_direct = direct; });
  };
  EXPECT_EQ(sums(When::never), sums(When::always));
}

std::string chosen_with(When direct) {
  ::testing::internal::CaptureStderr();
  run_ranks(
      {"a", "a"}, [](Communicator&, int) {},
      [&](CommunicatorOptions& options) {
        options.env.shm_chunk_bytes = 0;
        options.env.shm_direct = direct;
        options.env.info = true;
      });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(DirectReads, IsAsTheUserSays) {
  EXPECT_NE(chosen_with(When::always).find(", direct reads always, "), std::string::npos);
  EXPECT_NE(chosen_with(When::never).find(", no direct reads (SMDDP_SHM_DIRECT=never), "), std::string::npos);
}

TEST_F(DirectReads, IsTriedWhereEveryRankHasACore) {
  const std::string log = chosen_with(When::automatic);
  const bool cores = log.find(", a core for each rank") != std::string::npos;
  EXPECT_NE(log.find(cores ? ", direct reads where they turn out to be faster, a core for each rank"
                           : ", no direct reads (they need a core for each rank), fewer cores"),
            std::string::npos)
      << log;
}

// Pages that only their own process can read, as those of some devices.
class SecretMemory {
 public:
  explicit SecretMemory(std::size_t bytes) : bytes_(bytes) {
#ifdef SYS_memfd_secret
    const int fd = static_cast<int>(::syscall(SYS_memfd_secret, 0));
#else
    const int fd = -1;
#endif
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return;
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
  }
  ~SecretMemory() {
    if (there()) ::munmap(data_, bytes_);
  }
  SecretMemory(const SecretMemory&) = delete;
  SecretMemory& operator=(const SecretMemory&) = delete;
  bool there() const { return data_ != MAP_FAILED; }
  float* data() const { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  void* data_ = MAP_FAILED;
};

TEST_F(DirectReads, MemoryThatOthersCannotReadIsSharedInstead) {
  constexpr std::size_t kCount = 2048;
  if (!SecretMemory(kCount * sizeof(float)).there()) GTEST_SKIP() << "no secret memory here";
  run_ranks(
      {"a", "a", "a"},
      [&](Communicator& group, int rank) {
        const SecretMemory secret(kCount * sizeof(float));
        std::vector<float> plain(kCount);
        float* data = rank == 1 ? secret.data() : plain.data();
        const auto fill = [&] { std::fill_n(data, kCount, static_cast<float>(rank + 1)); };
        fill();
        group.all_reduce(data, data, kCount, DType::f32, ReduceOp::sum, kTimeout);
        EXPECT_EQ(data[kCount - 1], 6.F);
        fill();
        std::vector<float> all(3 * kCount);
        group.all_gather(data, {all.data(), &all[kCount], &all[2 * kCount]}, kCount * sizeof(float), kTimeout);
        EXPECT_EQ(all[kCount], 2.F);
        EXPECT_EQ(all[3 * kCount - 1], 3.F);
        const std::size_t part = kCount / 4;
        group.reduce_scatter({data, data + part, data + 2 * part}, plain.data(), part, DType::f32, ReduceOp::sum,
                             kTimeout);
        EXPECT_EQ(plain[part - 1], 6.F);
        fill();
        // Blocks of which some can be read: nobody but their rank would find out.
        std::vector<float> readable(kCount, static_cast<float>(rank + 1));
        group.reduce_scatter({readable.data(), data, &readable[part]}, plain.data(), part, DType::f32, ReduceOp::sum,
                             kTimeout);
        EXPECT_EQ(plain[part - 1], 6.F);
        std::vector<float> sums(kCount);
        group.all_reduce(data, sums.data(), kCount, DType::f32, ReduceOp::sum, kTimeout);
        EXPECT_EQ(sums[kCount - 1], 6.F);
        std::fill_n(readable.data(), kCount, static_cast<float>(rank + 1));
        group.all_reduce(readable.data(), data, kCount, DType::f32, ReduceOp::sum, kTimeout);
        EXPECT_EQ(data[kCount - 1], 6.F);
        fill();
        group.all_reduce(data, data, 2, DType::f32, ReduceOp::sum, kTimeout);
        EXPECT_EQ(data[1], 6.F) << "of fewer elements than ranks";
        for (int root = 0; root < 3; ++root) {
          fill();
          group.broadcast(data, kCount * sizeof(float), root, kTimeout);
          EXPECT_EQ(data[kCount - 1], static_cast<float>(root + 1));
        }
      },
      always_direct);
}

// A rank that gives an operation up may free its memory: who still reads it must not take that for data.
TEST_F(DirectReads, WhatWasWithdrawnIsNotData) {
  run_arenas([&](Arena& arena, int rank, const Op& op) {
    arena.meet(op, true);
    ASSERT_TRUE(arena.direct());
    const int mine = rank + 7;
    const Arena::Round round = arena.lend(op, {&mine}, true);
    arena.await_all_published(op, round, true);
    int found = 0;
    arena.fetch(op, 1 - rank, round, 0, 0, &found, sizeof found);
    EXPECT_EQ(found, 8 - rank);
    arena.signal_reduced(round);
    arena.await(op, 1 - rank, Arena::Phase::reduced, round);
    const Arena::Round next = arena.lend(op, {&mine}, true);
    arena.await_all_published(op, next, true);
    if (rank == 0) arena.withdraw();
    arena.signal_reduced(next);
    arena.await(op, 1 - rank, Arena::Phase::reduced, next);
    if (rank == 1) {
      EXPECT_THROW(arena.fetch(op, 0, next, 0, 0, &found, sizeof found), PeerError);
    }
  });
}

// Given up in the middle of operations, on one side: the other raises too, and neither reads what is gone.
TEST_F(DirectReads, AbortInTheMiddleEndsBoth) {
  for (int turn = 0; turn < 10; ++turn)
    run_ranks(
        {"a", "a"},
        [&](Communicator& group, int rank) {
          std::atomic<bool> begun{false};
          std::thread breaker([&] {
            while (!begun) std::this_thread::sleep_for(std::chrono::microseconds(100));
            std::this_thread::sleep_for(std::chrono::microseconds(300 * turn));
            if (rank == 0) group.abort("enough");
          });
          EXPECT_THROW(
              for (;;) {
                std::vector<float> data(200'000, 1.F);
                begun = true;
                group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
                EXPECT_EQ(data[199'999], 2.F);
              },
              Error);
          breaker.join();
        },
        always_direct);
}

}  // namespace
}  // namespace smddp::testing
