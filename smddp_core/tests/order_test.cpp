// The order in which hosts are summed: that of docs/smddp-algorithms.md, whichever way an operation goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>

#include "collective/wire_format.hpp"
#include "float_sums.hpp"

namespace smddp::testing {
namespace {

const Hosts kFour{"a", "b", "c", "d"};
const Hosts kEight{"a", "b", "c", "d", "e", "f", "g", "h"};
const Hosts kFourByTwo{"a", "a", "b", "b", "c", "c", "d", "d"};

TEST(Order, FourAndEightHostsAreSummedInPairs) {
  for (const Hosts& hosts : {kFour, kEight, kFourByTwo})
    for (const std::size_t count : {1000, 70'003})
      for (const When relay : {When::never, When::always}) {
        std::vector<Floats> parts = contributions(hosts, count);
        for (std::size_t distance = 1; distance < parts.size(); distance *= 2)
          for (std::size_t h = 0; h < parts.size(); h += 2 * distance)
            for (std::size_t i = 0; i < count; ++i) parts[h][i] += parts[h + distance][i];
        const auto got = sums(hosts, count, [&](CommunicatorOptions& options) {
          options.env.net_relay = relay;
          options.env.net_one_shot_bytes = std::size_t{128} << 10;
        });
        for (const Floats& each : got) ASSERT_EQ(each, parts[0]) << hosts.size() << " ranks, " << count << " elements";
      }
}

// Whether blocks go straight to their rank or are halved on the way.
TEST(Order, AReduceScatterHasTheBitsOfItsPartOfAnAllReduce) {
  for (const Hosts& hosts : {kFour, kEight})
    for (const std::size_t count : {1, 1000, 9000}) {
      const std::vector<Floats> whole = sums(hosts, count * hosts.size(), [](CommunicatorOptions&) {});
      for (const When relay : {When::never, When::always})
        run_ranks(
            hosts,
            [&](Communicator& group, int rank) {
              const Floats data = values(count * hosts.size(), rank);
              std::vector<const void*> ins;
              for (std::size_t r = 0; r < hosts.size(); ++r) ins.push_back(data.data() + r * count);
              Floats out(count);
              group.reduce_scatter(ins, out.data(), count, DType::f32, ReduceOp::sum, kTimeout);
              const auto first = whole[0].begin() + static_cast<std::ptrdiff_t>(count) * rank;
              ASSERT_EQ(out, Floats(first, first + static_cast<std::ptrdiff_t>(count))) << count << " elements";
            },
            [&](CommunicatorOptions& options) { options.env.net_relay = relay; });
    }
}

TEST(Order, HalvesAndAveragesAreTheSameBitsByAllWays) {
  const std::size_t count = 3000;
  for (const DType type : {DType::f16, DType::bf16, DType::f64, DType::i32})
    for (const Hosts& hosts : {kFour, kFourByTwo}) {
      std::vector<std::vector<std::byte>> results;
      for (const std::size_t one_shot : {std::size_t{0}, std::size_t{1} << 20})
        for (const When relay : {When::never, When::always})
          run_ranks(
              hosts,
              [&](Communicator& group, int rank) {
                const Floats mine = values(count, rank);
                std::vector<std::byte> data(count * size_of(type));
                if (type == DType::f64 || type == DType::i32)
                  std::memcpy(data.data(), mine.data(), std::min(data.size(), mine.size() * sizeof(float)));
                else
                  encode(type, data.data(), mine.data(), count, nullptr);
                group.all_reduce(data.data(), data.data(), count, type, ReduceOp::avg, kTimeout);
                if (rank == 0) results.push_back(data);
              },
              [&](CommunicatorOptions& options) {
                options.env.net_relay = relay;
                options.env.net_one_shot_bytes = one_shot;
              });
      for (const auto& each : results) ASSERT_EQ(each, results[0]) << name_of(type) << ", " << hosts.size() << " ranks";
    }
}

}  // namespace
}  // namespace smddp::testing
