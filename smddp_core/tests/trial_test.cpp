// The choice between two ways by what they take.
#include <gtest/gtest.h>

#include <thread>

#include "collective/trial.hpp"
#include "ranks.hpp"

namespace smddp::testing {
namespace {

/// Operations as the first rank of a host sees them. @return how many of them went the second way.
int go(Trial& trial, int operations, double first, double second) {
  int count = 0;
  for (int i = 0; i < operations; ++i) {
    const bool next = trial.plan();
    count += trial.second() ? 1 : 0;
    trial.took(trial.second() ? second : first);
    trial.follow(next);
  }
  return count;
}

constexpr int kTrials = 2 * Trial::kBurst;  // both ways at first

TEST(Trial, BeginsWithTheFirstWayAndTriesTheSecond) {
  Trial trial;
  EXPECT_EQ(go(trial, Trial::kBurst, 1, 1), 0);
  EXPECT_EQ(go(trial, Trial::kBurst, 1, 1), Trial::kBurst);
}

TEST(Trial, StaysWithTheFasterOne) {
  Trial slow_second;
  go(slow_second, kTrials, 1, 2);
  EXPECT_EQ(go(slow_second, Trial::kFirstStretch, 1, 2), 0);
  Trial fast_second;
  go(fast_second, kTrials, 2, 1);
  EXPECT_EQ(go(fast_second, Trial::kFirstStretch, 2, 1), Trial::kFirstStretch);
}

TEST(Trial, EqualsDoNotChangePlaces) {
  Trial trial;
  go(trial, kTrials, 1, 0.97);
  EXPECT_EQ(go(trial, Trial::kFirstStretch, 1, 0.97), 0);
}

TEST(Trial, TriesTheOtherEverMoreRarely) {
  Trial trial;
  const int bursts = go(trial, 10'000, 1, 2) / Trial::kBurst;
  EXPECT_GE(bursts, 10'000 / (Trial::kLongestStretch + Trial::kBurst));
  EXPECT_LE(bursts, 10'000 / Trial::kLongestStretch + 4) << "after 4, 48, 96 and 192 operations, then regularly";
}

TEST(Trial, FindsOutThatTheOtherHasBecomeFaster) {
  Trial trial;
  go(trial, 5'000, 1, 2);
  go(trial, Trial::kLongestStretch + kTrials, 3, 2);
  EXPECT_EQ(go(trial, 10, 3, 2), 10);
}

// One operation that something disturbed decides nothing.
TEST(Trial, OutliersDoNotCount) {
  Trial trial;
  for (int i = 0; i < 5'000; ++i) {
    const bool next = trial.plan();
    trial.took((trial.second() ? 2 : 1) * (i % 3 == 0 ? 10 : 1));
    trial.follow(next);
  }
  EXPECT_FALSE(trial.second());
}

// Ranks that disagreed on the way would read where nothing was written. Delays make the first rank change its mind.
TEST(Trial, AllRanksGoTheSameWay) {
  run_ranks(
      {"a", "a"},
      [](Communicator& group, int rank) {
        std::vector<float> data(300'000);
        std::vector<float> all(600'000);
        for (int turn = 0; turn < 400; ++turn) {
          const std::size_t count = turn % 2 == 0 ? 20'000 : data.size();
          std::fill(data.begin(), data.end(), static_cast<float>(rank + turn));
          group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
          ASSERT_EQ(data[0], 1.F + 2.F * static_cast<float>(turn));
          ASSERT_EQ(data[count - 1], data[0]);
          if (turn % 50 > 40) std::this_thread::sleep_for(std::chrono::microseconds(rank * 300));
          group.all_gather(data.data(), {all.data(), &all[count]}, count * sizeof(float), kTimeout);
          ASSERT_EQ(all[2 * count - 1], data[0]);
          group.reduce_scatter({all.data(), &all[count]}, data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
          ASSERT_EQ(data[count - 1], 2.F * all[0]);
        }
      },
      [](CommunicatorOptions& options) { options.env.shm_chunk_bytes = 65536; });
}

}  // namespace
}  // namespace smddp::testing
