// The exchange between hosts under every setting of how it is cut, coded and carried.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <ostream>
#include <thread>
#include <utility>

#include "collective/wire_format.hpp"
#include "float_sums.hpp"
#include "half_types.hpp"
#include "ranks.hpp"

namespace smddp::testing {
namespace {

const Hosts kFlat{"a", "b", "c"};
const Hosts kPair{"a", "b"};
const Hosts kFour{"a", "b", "c", "d"};
const Hosts kSix{"a", "b", "c", "d", "e", "f"};
const Hosts kTwoByTwo{"a", "a", "b", "b"};

struct Cut {
  const char* name;
  std::size_t block;
  std::size_t piece;
  std::size_t one_shot;
  std::size_t min_shard;
  int streams;
  std::size_t socket_buffer;
  When relay = When::never;
  std::size_t shard = 0;  // 0: a block may be one
};

const Cut kCuts[] = {
    {"default", std::size_t{4} << 20, std::size_t{256} << 10, 16384, 4096, 1, 0, When::never, std::size_t{256} << 10},
    {"largeBlocks", std::size_t{4} << 20, std::size_t{256} << 10, 16384, 4096, 1, 0},
    {"smallShards", std::size_t{4} << 20, std::size_t{256} << 10, 0, 1, 1, 0, When::never, 4096},
    {"onePiece", 8192, 1 << 20, 0, 1, 1, 0},
    {"manyPieces", 65536, 4096, 0, 1, 1, 0},
    {"oneServer", 16384, 4096, 0, 1 << 20, 1, 0},
    {"oneStep", 16384, 4096, std::size_t{1} << 30, 1, 1, 0},
    {"oneStepRelayed", 16384, 4096, std::size_t{1} << 30, 1, 1, 0, When::always},
    {"relayedStreams3", 16384, 4096, std::size_t{1} << 30, 1, 3, 0, When::always},
    // Pieces that no buffer holds: every one takes several short writes and reads. (Buffers below two of loopback's
    // segments of 64 KiB would only measure delayed acknowledgements.)
    {"shortWrites", std::size_t{1} << 20, std::size_t{1} << 20, 0, 1, 1, 131072},
    {"streams3", std::size_t{4} << 20, std::size_t{1} << 20, 0, 1, 3, 0},
    {"streams4shortWrites", std::size_t{1} << 20, std::size_t{512} << 10, 0, 1, 4, 131072},
};

void apply(const Cut& cut, CommunicatorOptions& options) {
  options.env.net_block_bytes = cut.block;
  options.env.net_shard_bytes = cut.shard ? cut.shard : cut.block;
  options.env.net_piece_bytes = cut.piece;
  options.env.net_one_shot_bytes = cut.one_shot;
  options.env.min_shard_bytes = cut.min_shard;
  options.env.streams = cut.streams;
  options.env.socket_buffer_bytes = cut.socket_buffer;
  options.env.net_relay = cut.relay;
}

// The name only, in failures.
std::ostream& operator<<(std::ostream& out, const Cut& cut) { return out << cut.name; }

class Cuts : public ::testing::TestWithParam<Cut> {};

// What every rank has after an all-reduce with the default settings. Made once, as it is the same for every cut.
const Floats& default_sum(const Hosts& hosts, std::size_t count) {
  static std::map<std::pair<Hosts, std::size_t>, Floats> made;
  const auto found = made.find({hosts, count});
  if (found != made.end()) return found->second;
  const std::vector<Floats> got =
      sums(hosts, count, [](CommunicatorOptions& options) { options.env.net_relay = When::never; });
  for (const Floats& other : got) EXPECT_EQ(other, got[0]);
  return made.emplace(std::pair(hosts, count), got[0]).first->second;
}

// One order of summation, whatever else changes: rounding would show another.
TEST_P(Cuts, AllReduceHasTheSameBits) {
  for (const Hosts& hosts : {kPair, kFlat, kFour, kSix, kTwoByTwo})
    for (const std::size_t count : {1, 1000, 70'003, 400'001}) {
      const Floats& expected = default_sum(hosts, count);
      const std::vector<Floats> got =
          sums(hosts, count, [](CommunicatorOptions& options) { apply(GetParam(), options); });
      for (std::size_t r = 0; r < hosts.size(); ++r)
        ASSERT_EQ(got[r], expected) << hosts.size() << " ranks, " << count << " elements, rank " << r;
    }
}

// Where one step or two is found out by going both ways: bits do not change, also where headers go by way of others,
// and when the first rank changes its mind since others are late.
TEST(NetTrials, AllRanksGoTheSameWay) {
  constexpr int kTurns = 160;
  for (const When relay : {When::never, When::always})
    for (const Hosts& hosts : {kFlat, kFour, kSix, kTwoByTwo, Hosts{"a", "b", "c", "d", "e"}}) {
      const std::size_t small = 700;
      const std::size_t large = 3000;
      const Floats expected =
          sums(hosts, large, [](CommunicatorOptions& options) { options.env.net_try_bytes = 0; })[0];
      run_ranks(
          hosts,
          [&](Communicator& group, int rank) {
            const Floats mine = values(large, rank);
            for (int turn = 0; turn < kTurns; ++turn) {
              Floats data = mine;
              const std::size_t count = turn % 3 == 0 ? small : large;
              if (turn % 40 > 30) std::this_thread::sleep_for(std::chrono::microseconds(rank * 200));
              group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
              ASSERT_TRUE(std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count), expected.begin()))
                  << turn;
              if (turn % 7 == 0) group.barrier(kTimeout);
            }
          },
          [&](CommunicatorOptions& options) {
            options.env.net_relay = relay;
            options.env.net_one_shot_bytes = 0;
          });
    }
}

TEST_P(Cuts, MovesAreExact) {
  for (const Hosts& hosts : {kFlat, kTwoByTwo})
    run_ranks(
        hosts,
        [&](Communicator& group, int rank) {
          const auto size = static_cast<int>(hosts.size());
          const std::size_t count = 150'001;
          std::vector<Floats> gathered(hosts.size(), Floats(count));
          std::vector<void*> outs;
          for (Floats& each : gathered) outs.push_back(each.data());
          const Floats mine = values(count, rank);
          group.all_gather(mine.data(), outs, count * sizeof(float), kTimeout);
          for (int r = 0; r < size; ++r) ASSERT_EQ(gathered[static_cast<std::size_t>(r)], values(count, r));
          for (int root = 0; root < size; ++root) {
            Floats news = values(count, rank == root ? 99 : rank);
            group.broadcast(news.data(), count * sizeof(float), root, kTimeout);
            ASSERT_EQ(news, values(count, 99)) << "from " << root;
          }
        },
        [](CommunicatorOptions& options) { apply(GetParam(), options); });
}

TEST_P(Cuts, ReduceScatterIsAPartOfAllReduce) {
  for (const Hosts& hosts : {kPair, kFlat, kFour, kTwoByTwo}) {
    const std::size_t count = 50'021;
    const std::size_t all = count * hosts.size();
    const Floats& expected = default_sum(hosts, all);
    run_ranks(
        hosts,
        [&](Communicator& group, int rank) {
          const Floats data = values(all, rank);
          std::vector<const void*> ins;
          for (std::size_t r = 0; r < hosts.size(); ++r) ins.push_back(data.data() + r * count);
          Floats out(count);
          group.reduce_scatter(ins, out.data(), count, DType::f32, ReduceOp::sum, kTimeout);
          const auto first = expected.begin() + static_cast<std::ptrdiff_t>(count) * rank;
          ASSERT_EQ(out, Floats(first, first + static_cast<std::ptrdiff_t>(count)));
        },
        [](CommunicatorOptions& options) { apply(GetParam(), options); });
  }
}

INSTANTIATE_TEST_SUITE_P(Net, Cuts, ::testing::ValuesIn(kCuts),
                         [](const ::testing::TestParamInfo<Cut>& chosen) { return std::string(chosen.param.name); });

// Sums of 64-bit numbers over hosts of several ranks, in 16-bit types too: those cross the network as float32.
TEST(Hierarchy, ManyBlocksInFlight) {
  run_ranks({"a", "b", "a", "b", "a", "b"}, [](Communicator& group, int rank) {
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<double> data(100'003);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i) + rank;
      group.all_reduce(data.data(), data.data(), data.size(), DType::f64, ReduceOp::avg, kTimeout);
      for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<double>(i) + 2.5);
      std::vector<std::uint16_t> half(100'003, f16_of(static_cast<float>(rank)));
      group.all_reduce(half.data(), half.data(), half.size(), DType::f16, ReduceOp::sum, kTimeout);
      for (const std::uint16_t value : half) ASSERT_EQ(float_of_f16(value), 15.F);
    }
  });
}

// For those who add inside the hosts themselves: each rail's sums are its own.
TEST(Hierarchy, RailsCanBeUsedAlone) {
  for (const Hosts& hosts : {kTwoByTwo, Hosts{"a", "b", "a", "b"}, kFlat})
    run_ranks(hosts, [](Communicator& group, int rank) {
      for (const std::size_t count : {0U, 1U, 100'003U}) {
        Floats data(count, static_cast<float>(rank + 1));
        group.all_reduce_between_hosts(data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
        float sum = 0;
        for (const int other : group.topology().rail()) sum += static_cast<float>(other + 1);
        ASSERT_EQ(data, Floats(count, sum));
        group.all_reduce_between_hosts(data.data(), count, DType::f32, ReduceOp::avg, kTimeout);
        ASSERT_EQ(data, Floats(count, sum));
      }
    });
}

TEST(Hierarchy, ThereAreNoRailsOnOneHostOrUnevenOnes) {
  for (const Hosts& hosts : {Hosts{"a", "a"}, Hosts{"a", "a", "b"}})
    run_ranks(hosts, [](Communicator& group, int) {
      float data = 1;
      ASSERT_FALSE(group.topology().has_rails());
      ASSERT_THROW(group.all_reduce_between_hosts(&data, 1, DType::f32, ReduceOp::sum, kTimeout), UsageError);
      group.barrier(kTimeout);
    });
}

TEST(Hierarchy, ARailsSumIsNotTheGroups) {
  run_ranks(kPair, [](Communicator& group, int rank) {
    float data = 1;
    const auto call = [&] {
      if (rank == 0) return group.all_reduce(&data, &data, 1, DType::f32, ReduceOp::sum, kTimeout);
      group.all_reduce_between_hosts(&data, 1, DType::f32, ReduceOp::sum, kTimeout);
    };
    ASSERT_THROW(call(), MismatchError);
  });
}

struct Code {
  DType type;
  double unit;  // unit round-off: half the distance between 1 and the next number
};
const Code kBf16{DType::bf16, 1.0 / 256};
const Code kF16{DType::f16, 1.0 / 2048};

std::function<void(CommunicatorOptions&)> coded(DType type) {
  return [type](CommunicatorOptions& options) {
    options.env.wire_dtype = type;
    options.env.wire_min_bytes = 4096;
  };
}

// The bound stated in docs/smddp-algorithms.md: u (sum of |x_h|) for the inputs, u |sum| for the result.
TEST(WireFormat, ErrorIsBoundedAndBitsAreTheSame) {
  const std::size_t count = 50'003;
  for (const Code& code : {kBf16, kF16})
    for (const Hosts& hosts : {kPair, kFlat, kTwoByTwo}) {
      const std::vector<Floats> got = sums(hosts, count, coded(code.type));
      const std::vector<Floats> parts = contributions(hosts, count);
      std::size_t inexact = 0;
      for (std::size_t i = 0; i < count; ++i) {
        double exact = 0;
        double magnitude = 0;
        for (const Floats& part : parts) {
          exact += static_cast<double>(part[i]);
          magnitude += std::fabs(static_cast<double>(part[i]));
        }
        const double error = std::fabs(static_cast<double>(got[0][i]) - exact);
        // 1e-6: float32 sums and f16's subnormal numbers.
        ASSERT_LE(error, (2 * code.unit + code.unit * code.unit) * magnitude + 1e-6) << name_of(code.type) << " " << i;
        inexact += error > 1e-5;
      }
      EXPECT_GT(inexact, count / 2) << "nothing was rounded: the format was not used";
      for (const Floats& other : got) ASSERT_EQ(other, got[0]);
    }
}

TEST(WireFormat, BitsDoNotDependOnTheCut) {
  const std::size_t count = 50'003;
  for (const Hosts& hosts : {kFlat, kTwoByTwo}) {
    const std::vector<Floats> expected = sums(hosts, count, coded(DType::bf16));
    for (const Cut& cut : kCuts) {
      const std::vector<Floats> got = sums(hosts, count, [&](CommunicatorOptions& options) {
        apply(cut, options);
        coded(DType::bf16)(options);
      });
      for (const Floats& each : got) ASSERT_EQ(each, expected[0]) << cut.name;
    }
  }
}

TEST(WireFormat, SmallMessagesAndOtherTypesStayExact) {
  run_ranks(
      kFlat,
      [](Communicator& group, int) {
        Floats small(1000, 1.001F);
        group.all_reduce(small.data(), small.data(), small.size(), DType::f32, ReduceOp::sum, kTimeout);
        for (const float value : small) ASSERT_EQ(value, 1.001F + 1.001F + 1.001F);
        Floats largest(5000, 1.001F);
        group.all_reduce(largest.data(), largest.data(), largest.size(), DType::f32, ReduceOp::max, kTimeout);
        for (const float value : largest) ASSERT_EQ(value, 1.001F);
        std::vector<double> wide(5000, 1.001);
        group.all_reduce(wide.data(), wide.data(), wide.size(), DType::f64, ReduceOp::sum, kTimeout);
        for (const double value : wide) ASSERT_EQ(value, 1.001 + 1.001 + 1.001);
      },
      coded(DType::bf16));
}

// A constant gradient, summed again and again: without feedback the mean keeps its error, with it the error goes with
// the number of steps.
TEST(WireFormat, ErrorFeedbackConvergesToTheExactMean) {
  constexpr int kSteps = 60;
  constexpr double kUnit = 1.0 / 256;  // of bfloat16
  const std::size_t count = 5'003;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg})
    for (const Hosts& hosts : {kPair, kFlat, kTwoByTwo}) {
      const std::vector<Floats> parts = contributions(hosts, count);
      const double divisor = op == ReduceOp::avg ? static_cast<double>(hosts.size()) : 1.0;
      std::mutex mutex;
      double worst[2] = {0, 0};
      run_ranks(
          hosts,
          [&](Communicator& group, int rank) {
            for (const bool feedback : {false, true}) {
              Residual residual;
              std::vector<double> mean(count);
              for (int step = 0; step < kSteps; ++step) {
                Floats data = values(count, rank);
                group.all_reduce(data.data(), data.data(), count, DType::f32, op, kTimeout,
                                 feedback ? &residual : nullptr);
                for (std::size_t i = 0; i < count; ++i) mean[i] += static_cast<double>(data[i]) / kSteps;
              }
              EXPECT_EQ(residual.bytes() > 0, feedback);
              double error = 0;
              for (std::size_t i = 0; i < count; ++i) {
                double exact = 0;
                double bound = 0;  // docs/smddp-algorithms.md, and a little for sums in float32
                for (const Floats& part : parts) {
                  exact += static_cast<double>(part[i]) / divisor;
                  bound += std::fabs(static_cast<double>(part[i])) / divisor * ((2 + kUnit) * kUnit / kSteps + 1e-6);
                }
                error = std::max(error, std::fabs(mean[i] - exact));
                EXPECT_TRUE(!feedback || std::fabs(mean[i] - exact) <= bound);
              }
              const std::lock_guard<std::mutex> lock(mutex);
              worst[feedback] = std::max(worst[feedback], error);
            }
          },
          coded(DType::bf16));
      EXPECT_GT(worst[0], 1e-3) << "no error to feed back";
      EXPECT_LT(worst[1], worst[0] / 10) << hosts.size() << " ranks " << name_of(op);
    }
}

TEST(WireFormat, InfinityDoesNotStayInTheResidual) {
  const Floats in{65504.F, 1e30F, -INFINITY, NAN, 1.F};
  Floats residual(in.size());
  std::uint16_t code[5];
  encode(DType::f16, code, in.data(), in.size(), residual.data());
  for (const float left : residual) EXPECT_EQ(left, 0.F);
  Floats back(in.size());
  decode(DType::f16, back.data(), code, in.size());
  EXPECT_EQ(back[0], 65504.F);
  EXPECT_TRUE(std::isinf(back[1]));
  EXPECT_TRUE(std::isinf(back[2]));
  EXPECT_TRUE(std::isnan(back[3]));
}

// A residual that served another message begins anew instead of being applied to the wrong elements.
TEST(WireFormat, ResidualOfAnotherSizeIsForgotten) {
  run_ranks(
      kPair,
      [](Communicator& group, int) {
        Residual residual;
        for (const std::size_t count : {3000, 5000, 3000}) {
          Floats with(count, 1.001F);
          group.all_reduce(with.data(), with.data(), count, DType::f32, ReduceOp::sum, kTimeout, &residual);
          Floats without(count, 1.001F);
          group.all_reduce(without.data(), without.data(), count, DType::f32, ReduceOp::sum, kTimeout);
          ASSERT_EQ(with, without) << count;
        }
      },
      coded(DType::bf16));
}

// Reduce-scatter sends sums one way only: its result is not rounded.
TEST(WireFormat, ReduceScatterRoundsInputsOnly) {
  run_ranks(
      kPair,
      [](Communicator& group, int rank) {
        const std::size_t count = 5000;
        // 1 + 2^-7 and 2^-9 are bfloat16 numbers, their sum is not.
        const Floats mine(count, rank == 0 ? 1.F + 1.F / 128 : 1.F / 512);
        const std::vector<const void*> ins{mine.data(), mine.data()};
        Floats out(count);
        group.reduce_scatter(ins, out.data(), count, DType::f32, ReduceOp::sum, kTimeout);
        for (const float value : out) ASSERT_EQ(value, 1.F + 1.F / 128 + 1.F / 512);
      },
      coded(DType::bf16));
}

}  // namespace
}  // namespace smddp::testing
