// What the ranks of one host share: memory (also where /dev/shm has too little), cores, and the way to write.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "arenas.hpp"
#include "kernel/copy.hpp"
#include "kernel/reduce.hpp"
#include "ranks.hpp"
#include "transport/arena.hpp"
#include "transport/cores.hpp"
#include "transport/segment.hpp"

namespace smddp::testing {
namespace {

Deadline soon() { return Deadline(std::chrono::seconds(5)); }

// More than /dev/shm can give.
std::size_t too_much() {
  struct statvfs fs{};
  return ::statvfs("/dev/shm", &fs) == 0 ? fs.f_blocks * fs.f_frsize + 4096 : 4096;
}

void expect_shared(Segment& mine, const Nonce& nonce) {
  const Segment theirs = Segment::open(mine.address(), nonce, soon());
  ASSERT_EQ(theirs.bytes(), mine.bytes());
  mine.data()[mine.bytes() - 1] = std::byte{42};
  EXPECT_EQ(theirs.data()[mine.bytes() - 1], std::byte{42});
  const std::string address = mine.address();
  mine.hide();
  EXPECT_THROW(Segment::open(address, nonce, soon()), Error);
  mine.data()[0] = std::byte{7};
  EXPECT_EQ(theirs.data()[0], std::byte{7}) << "the memory outlives its address";
}

TEST(Segment, IsFoundByItsAddressUntilItIsHidden) {
  const Nonce nonce = make_nonce();
  Segment segment = Segment::create(8192, nonce, segment_name(nonce, 0));
  EXPECT_EQ(segment.address()[0], '/');
  expect_shared(segment, nonce);
}

TEST(Segment, TakesAnonymousMemoryWhereDevShmIsTooSmall) {
  const Nonce nonce = make_nonce();
  Segment segment = Segment::create(too_much(), nonce, segment_name(nonce, 0));
  EXPECT_EQ(segment.address()[0], '@');
  EXPECT_TRUE(Segment::is_address(segment.address()));
  EXPECT_FALSE(Segment::is_address("no memory"));
  expect_shared(segment, nonce);
}

TEST(Segment, IsNotHandedToStrangers) {
  const Nonce nonce = make_nonce();
  const Segment segment = Segment::create(too_much(), nonce, segment_name(nonce, 0));
  EXPECT_THROW(Segment::open(segment.address(), make_nonce(), soon()), Error);
  EXPECT_EQ(Segment::open(segment.address(), nonce, soon()).bytes(), segment.bytes()) << "the server still answers";
}

TEST(Segment, IsRemovedByTheNextMakerWhenItsOwnWasKilled) {
  const Nonce nonce = make_nonce();
  const std::string name = segment_name(nonce, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Segment segment = Segment::create(8192, nonce, name);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const Nonce others = make_nonce();
  const Segment alive = Segment::create(8192, others, segment_name(others, 0));
  EXPECT_EQ(Segment::open(name, nonce, soon()).bytes(), 8192U) << "not yet: its maker might be about to lock it";
  remove_abandoned_segments(std::chrono::seconds(0));
  EXPECT_THROW(Segment::open(name, nonce, soon()), Error);
  EXPECT_EQ(Segment::open(alive.address(), others, soon()).bytes(), 8192U) << "held by its maker";
}

// In a child with a mount namespace of its own, where `prepare` changes /dev/shm: 3 ranks form two groups and sum.
// Exit status 0: right sums; 77: the child may not do this.
int sum_in_child(const std::function<bool()>& prepare) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 || !prepare())
      ::_exit(77);
    int wrong = 0;
    for (int group = 0; group < 2; ++group)
      run_ranks(
          {"a", "a", "a"},
          [&](Communicator& communicator, int rank) {
            std::vector<float> data(700'000, static_cast<float>(rank));
            communicator.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
            if (data != std::vector<float>(data.size(), 3.F)) wrong = 1;
            if (communicator.topology().path != Path::host) wrong = 2;
          },
          [](CommunicatorOptions& options) { options.env.shm_chunk_bytes = 0; });
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool mount_tiny(const char* options) { return ::mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0; }

class PoorHosts : public ::testing::TestWithParam<std::pair<const char*, bool (*)()>> {};

TEST_P(PoorHosts, StillSum) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads made after a fork";
#endif
  const int status = sum_in_child(GetParam().second);
  if (status == 77) GTEST_SKIP() << "mounting needs privileges";
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(
    DevShm, PoorHosts,
    ::testing::Values(std::pair(
                          "tiny", +[] { return mount_tiny("size=64k"); }),
                      std::pair(
                          "full",
                          +[] {
                            if (!mount_tiny("size=16m")) return false;
                            const int fd = ::open("/dev/shm/filler", O_CREAT | O_WRONLY, 0600);
                            const bool full = ::posix_fallocate(fd, 0, (16 << 20) - 8192) == 0;
                            ::close(fd);
                            return full;
                          }),
                      std::pair(
                          "readonly",
                          +[] {
                            return mount_tiny("size=1m") &&
                                   ::mount(nullptr, "/dev/shm", nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
                          }),
                      std::pair(
                          "missing", +[] { return ::mount("/proc", "/dev", nullptr, MS_BIND, nullptr) == 0; })),
    [](const auto& chosen) { return std::string(chosen.param.first); });

// Shared-memory objects of this user's groups, of other programs too.
std::set<std::string> objects() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().rfind("smddp-", 0) == 0) names.insert(entry.path());
  return names;
}

TEST(Segment, NothingStaysInDevShmWhenRanksAreKilled) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads made after a fork";
#endif
  const std::set<std::string> before = objects();
  const pid_t child = ::fork();
  if (child == 0) {
    run_ranks({"a", "a"}, [](Communicator&, int rank) {
      if (rank == 0) ::kill(::getpid(), SIGKILL);
      ::pause();
    });
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (const std::string& name : objects()) EXPECT_EQ(before.count(name), 1U) << name;
}

cpu_set_t cores(std::initializer_list<int> list) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : list) CPU_SET(core, &set);
  return set;
}

// The same sums whichever way shared memory is written, with chunks of the size the machine asks for.
TEST(Stores, CachedAndStreamingGiveTheSameBits) {
  const auto sums = [](const char* stores) {
    return rounded_sums(0, [stores](CommunicatorOptions& options) {
      options.env.shm_chunk_bytes = 0;
      options.env.shm_stores = stores;
    });
  };
  EXPECT_EQ(sums("cached"), sums("streaming"));
}

TEST(Stores, AreMeasuredWhereNobodyChose) {
  ::testing::internal::CaptureStderr();
  run_ranks(
      {"a", "a"}, [](Communicator&, int) {},
      [](CommunicatorOptions& options) {
        options.env.shm_chunk_bytes = 0;
        options.env.info = true;
      });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("(a chunk cached "), std::string::npos) << log;
  EXPECT_NE(log.find("chunks of "), std::string::npos) << log;
}

TEST(Cores, OneForEachProcess) {
  const cpu_set_t both = cores({0, 1});
  EXPECT_TRUE(cores_suffice({both, both}, INT_MAX));
  EXPECT_FALSE(cores_suffice({both, both, both}, INT_MAX));
  EXPECT_TRUE(cores_suffice({cores({0}), cores({1}), cores({2})}, INT_MAX)) << "bound one by one";
  EXPECT_FALSE(cores_suffice({cores({0}), cores({0}), cores({1, 2, 3})}, INT_MAX)) << "two on one core";
  EXPECT_FALSE(cores_suffice({both, both}, 1)) << "the container's quota";
  EXPECT_FALSE(cores_suffice({cores({}), both}, INT_MAX)) << "unknown";
}

bool same(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b) != 0; }

TEST(Cores, AreLeftWithoutGivingThemUp) {
  const cpu_set_t allowed = allowed_cores();
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one core";
  const int here = ::sched_getcpu();
  leave_cores(cores({here}));
  EXPECT_NE(::sched_getcpu(), here);
  EXPECT_TRUE(same(allowed_cores(), allowed));
  leave_cores(allowed);
  EXPECT_TRUE(same(allowed_cores(), allowed)) << "nowhere to go";
}

// Schedulers may leave both on one core while another idles.
TEST(Cores, WhoWaitsForARankOnItsCoreMovesToAnother) {
  const cpu_set_t allowed = allowed_cores();
  if (CPU_COUNT(&allowed) < 2 || quota_cores() < 2) GTEST_SKIP() << "one core";
  const int crowded = ::sched_getcpu();
  const auto go_there = [&] {
    const cpu_set_t one = cores({crowded});
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    ASSERT_EQ(::sched_setaffinity(0, sizeof allowed, &allowed), 0);
  };
  constexpr int kTurns = 20;
  int apart = 0;
  std::atomic<int> seen{0};  // Turns in which rank 0 has waited long enough to look.
  run_arenas([&](Arena& arena, int rank, const Op& op) {
    const auto meet = [&] {
      const Arena::Round round = arena.begin(op, 0);
      arena.publish(op, round);
      arena.await_all_published(op, round, true);
    };
    arena.meet(op, false);
    ASSERT_TRUE(arena.spinning());
    bool looked = true;
    // Called when the wait has spun and yielded.
    arena.while_waiting([&](const Op&) {
      if (!looked && rank == 0) {
        // It, or rank 1 where that waited longer for the round before.
        if (arena.apart()) ++apart;
        ++seen;
      }
      return !(looked = true);
    });
    for (int turn = 0; turn < kTurns; ++turn) {
      go_there();
      meet();
      // However late others let rank 0 run.
      while (rank == 1 && seen <= turn) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      go_there();
      looked = false;
      meet();
    }
    EXPECT_TRUE(same(allowed_cores(), allowed));
  });
  EXPECT_GE(apart, kTurns / 2);
}

TEST(Cores, ReadsCgroupLimits) {
  EXPECT_EQ(cores_of_cpu_max("150000 100000"), 1.5);
  EXPECT_EQ(cores_of_cpu_max("max 100000"), 0);
  EXPECT_EQ(cores_of_cpu_max("-1 100000"), 0) << "version 1: no limit";
  EXPECT_EQ(cores_of_cpu_max(""), 0);
  EXPECT_GE(quota_cores(), 1);
}

using Copying = std::function<void(void*, const void*, std::size_t)>;

TEST(Copy, AnyAlignmentAndLength) {
  const Copying copies[] = {
      [](void* to, const void* from, std::size_t bytes) { copy_with(Stores::cached, to, from, bytes); },
      [](void* to, const void* from, std::size_t bytes) { copy_with(Stores::streaming, to, from, bytes); },
      [](void* to, const void* from, std::size_t bytes) { copy_ahead(Far::source, to, from, bytes); },
      [](void* to, const void* from, std::size_t bytes) { copy_ahead(Far::target, to, from, bytes); }};
  for (const Copying& copy : copies)
    for (std::size_t to = 0; to < 70; to += 7)
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 200, 5000}) {
        std::vector<unsigned char> source(bytes + 3);
        for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 31 + 1);
        std::vector<unsigned char> target(bytes + 200, 0);
        copy(target.data() + to, source.data() + 3, bytes);
        EXPECT_EQ(std::memcmp(target.data() + to, source.data() + 3, bytes), 0) << to << " " << bytes;
        for (std::size_t i = 0; i < target.size(); ++i)
          if (i < to || i >= to + bytes) {
            ASSERT_EQ(target[i], 0) << "outside: " << to << " " << bytes << " at " << i;
          }
      }
  for (const Copying& copy : copies) copy(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace smddp::testing
