// Every operation over every path, type, size and placement, against results computed on one thread.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "patterns.hpp"
#include "ranks.hpp"

namespace smddp::testing {
namespace {

struct Case {
  const char* name;
  Hosts hosts;
  bool tcp_only;
  Path path;
  const char* provider = "";  ///< libfabric's, for the network; none for TCP.
  Inside inside = Inside::slots;
  bool relay = false;  ///< Small messages between hosts go by way of others.
};

const Case kCases[] = {
    {"alone", {"a"}, false, Path::alone},
    {"host2", {"a", "a"}, false, Path::host},
    {"host3", {"a", "a", "a"}, false, Path::host},
    {"host4", {"a", "a", "a", "a"}, false, Path::host},
    {"mailboxes2", {"a", "a"}, false, Path::host, "", Inside::mailboxes},
    {"mailboxes3", {"a", "a", "a"}, false, Path::host, "", Inside::mailboxes},
    {"mailboxes4", {"a", "a", "a", "a"}, false, Path::host, "", Inside::mailboxes},
    {"direct2", {"a", "a"}, false, Path::host, "", Inside::direct},
    {"direct3", {"a", "a", "a"}, false, Path::host, "", Inside::direct},
    {"direct4", {"a", "a", "a", "a"}, false, Path::host, "", Inside::direct},
    {"tcp2", {"a", "a"}, true, Path::flat},
    {"tcp5", {"a", "a", "a", "a", "a"}, true, Path::flat},
    {"uneven3", {"a", "b", "b"}, false, Path::flat},
    {"relayed4", {"a", "b", "c", "d"}, false, Path::flat, "", Inside::slots, true},
    {"relayedHosts4x2", {"a", "a", "b", "b", "c", "c", "d", "d"}, false, Path::hierarchical, "", Inside::slots, true},
    {"relayedHosts3x2", {"a", "a", "b", "b", "c", "c"}, false, Path::hierarchical, "", Inside::slots, true},
    {"relayedFabric5", {"a", "b", "c", "d", "e"}, false, Path::flat, "tcp;ofi_rxm", Inside::slots, true},
    {"hosts2x2", {"a", "a", "b", "b"}, false, Path::hierarchical},
    {"hosts2x2interleaved", {"a", "b", "a", "b"}, false, Path::hierarchical},
    {"hosts3x2", {"a", "a", "b", "b", "c", "c"}, false, Path::hierarchical},
    {"hosts2x3", {"a", "a", "a", "b", "b", "b"}, false, Path::hierarchical},
    {"mailboxesHosts2x2", {"a", "a", "b", "b"}, false, Path::hierarchical, "", Inside::mailboxes},
    {"mailboxesHosts2x3", {"a", "a", "a", "b", "b", "b"}, false, Path::hierarchical, "", Inside::mailboxes},
    {"directHosts2x2", {"a", "a", "b", "b"}, false, Path::hierarchical, "", Inside::direct},
    {"directHosts2x3", {"a", "a", "a", "b", "b", "b"}, false, Path::hierarchical, "", Inside::direct},
    {"fabric2", {"a", "b"}, false, Path::flat, "tcp;ofi_rxm"},
    {"fabric4", {"a", "b", "c", "d"}, false, Path::flat, "tcp;ofi_rxm"},
    {"fabricHosts2x2", {"a", "a", "b", "b"}, false, Path::hierarchical, "tcp;ofi_rxm"},
    {"fabricSockets3", {"a", "b", "c"}, false, Path::flat, "sockets"},
};

Buffer expected_sum(DType type, std::size_t count, int size, ReduceOp op, int seed_step = 1, int seed = 0) {
  std::vector<int> seeds;
  for (int r = 0; r < size; ++r) seeds.push_back(r * seed_step + seed);
  return reduced(type, count, seeds, op);
}

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string reason = cannot_use(GetParam().provider);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  void run(const std::function<void(Communicator&, int)>& body) {
    const Case& now = GetParam();
    run_ranks(now.hosts, body, [&](CommunicatorOptions& options) {
      options.env.tcp_only = now.tcp_only;
      go_by(options, now.inside);
      options.env.net_relay = now.relay ? When::always : When::never;
      use_fabric(options, now.provider);
    });
  }
  int size() const { return static_cast<int>(GetParam().hosts.size()); }
};

using Counts = std::vector<std::size_t>;
#ifdef __SANITIZE_THREAD__  // threads meet in the same places whatever they add up
const Counts kCounts{0, 1, 100, 5000, 40'000};
const DType kTypes[] = {DType::f32, DType::bf16, DType::c128};
const ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg};
const ReduceOp kScatteredOps[] = {ReduceOp::sum, ReduceOp::avg};
#else
const Counts kCounts{0, 1, 15, 16, 100, 1023, 5000, 40'000};
const DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8,  DType::i8,
                        DType::i16, DType::i32, DType::i64, DType::c64,  DType::c128};
const ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                         ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};
const ReduceOp kScatteredOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::bxor};
#endif

TEST_P(Collectives, TakesTheExpectedPath) {
  run([&](Communicator& group, int) { EXPECT_EQ(group.topology().path, GetParam().path); });
}

TEST_P(Collectives, AllReduce) {
  run([&](Communicator& group, int rank) {
    for (const DType type : kTypes)
      for (const ReduceOp op : kOps)
        for (const std::size_t count : can_reduce(type, op) ? Counts(kCounts) : Counts{}) {
          const Buffer input = pattern(type, count, rank);
          const Buffer expected = expected_sum(type, count, size(), op);
          Buffer apart(input.size());
          group.all_reduce(input.data(), apart.data(), count, type, op, kTimeout);
          ASSERT_EQ(apart, expected) << name_of(type) << " " << name_of(op) << " " << count << " on rank " << rank;
          Buffer in_place = input;
          group.all_reduce(in_place.data(), in_place.data(), count, type, op, kTimeout);
          ASSERT_EQ(in_place, expected) << name_of(type) << " " << name_of(op) << " " << count << " in place";
        }
  });
}

TEST_P(Collectives, ReduceScatter) {
  run([&](Communicator& group, int rank) {
    for (const DType type : kTypes)
      for (const ReduceOp op : kScatteredOps)
        for (const std::size_t count : can_reduce(type, op) ? Counts(kCounts) : Counts{}) {
          std::vector<Buffer> inputs;
          std::vector<const void*> ins;
          for (int r = 0; r < size(); ++r) inputs.push_back(pattern(type, count, rank * 3 + r));
          for (const Buffer& input : inputs) ins.push_back(input.data());
          Buffer out(count * size_of(type));
          group.reduce_scatter(ins, out.data(), count, type, op, kTimeout);
          const Buffer expected = expected_sum(type, count, size(), op, 3, rank);
          ASSERT_EQ(out, expected) << name_of(type) << " " << count;
          void* const mine = inputs[static_cast<std::size_t>(rank)].data();
          group.reduce_scatter(ins, mine, count, type, op, kTimeout);
          ASSERT_EQ(inputs[static_cast<std::size_t>(rank)], expected) << name_of(type) << " " << count << " in place";
          for (int r = 0; r < size(); ++r)
            ASSERT_TRUE(r == rank || inputs[static_cast<std::size_t>(r)] == pattern(type, count, rank * 3 + r));
        }
  });
}

TEST_P(Collectives, AllGather) {
  run([&](Communicator& group, int rank) {
    for (const std::size_t bytes : {0, 1, 33, 4096, 4097, 100'000}) {
      std::vector<Buffer> results(static_cast<std::size_t>(size()), Buffer(bytes));
      std::vector<void*> outs;
      for (Buffer& result : results) outs.push_back(result.data());
      const Buffer input = pattern(DType::bytes, bytes, rank);
      group.all_gather(input.data(), outs, bytes, kTimeout);
      for (int r = 0; r < size(); ++r)
        ASSERT_EQ(results[static_cast<std::size_t>(r)], pattern(DType::bytes, bytes, r)) << bytes << " from " << r;
      for (int r = 0; r < size(); ++r)
        if (r != rank) results[static_cast<std::size_t>(r)].assign(bytes, 0);
      group.all_gather(outs[static_cast<std::size_t>(rank)], outs, bytes, kTimeout);
      for (int r = 0; r < size(); ++r)
        ASSERT_EQ(results[static_cast<std::size_t>(r)], pattern(DType::bytes, bytes, r)) << bytes << " in place";
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRank) {
  run([&](Communicator& group, int rank) {
    for (int root = 0; root < size(); ++root)
      for (const std::size_t bytes : {0, 1, 33, 4096, 9000, 70'000, 300'001}) {
        Buffer buffer = pattern(DType::bytes, bytes, rank == root ? 99 : rank);
        group.broadcast(buffer.data(), bytes, root, kTimeout);
        ASSERT_EQ(buffer, pattern(DType::bytes, bytes, 99)) << bytes << " from " << root;
      }
  });
}

TEST_P(Collectives, NobodyPassesABarrierEarly) {
  std::atomic<int> arrived{0};
  run([&](Communicator& group, int rank) {
    for (int turn = 1; turn <= 20; ++turn) {
      if (rank == turn % size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++arrived;
      group.barrier(kTimeout);
      ASSERT_GE(arrived.load(), turn * size());
    }
  });
}

// Slots and counters are reused across operations of different kinds and lengths.
TEST_P(Collectives, MixedOperationsInARow) {
  run([&](Communicator& group, int rank) {
    for (int turn = 0; turn < 30; ++turn) {
      const auto count = static_cast<std::size_t>(turn * 331 % 6000);
      Buffer sum = pattern(DType::f32, count, rank);
      group.all_reduce(sum.data(), sum.data(), count, DType::f32, ReduceOp::sum, kTimeout);
      ASSERT_EQ(sum, expected_sum(DType::f32, count, size(), ReduceOp::sum));
      Buffer news = pattern(DType::bytes, count, rank);
      group.broadcast(news.data(), count, turn % size(), kTimeout);
      ASSERT_EQ(news, pattern(DType::bytes, count, turn % size()));
      group.barrier(kTimeout);
    }
    EXPECT_EQ(group.sequence(), 90U);
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Collectives, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& chosen) { return std::string(chosen.param.name); });

// Bits must not depend on chunk size, transport or timing: rounding shows any change of order.
TEST(Determinism, SameBitsForAnyChunkAndPath) {
  constexpr std::size_t count = 30'011;
  const auto value = [](std::size_t i, int rank) {
    return 1.F / static_cast<float>(i * 3 + static_cast<std::size_t>(rank) + 1);
  };
  std::vector<float> expected(count);
  for (std::size_t i = 0; i < count; ++i) expected[i] = (value(i, 0) + value(i, 1)) + value(i, 2);
  for (const bool tcp : {false, true})
    for (const std::size_t bytes : {4096, 12288, 1 << 20})
      run_ranks(
          {"a", "a", "a"},
          [&](Communicator& group, int rank) {
            std::vector<float> data(count);
            for (std::size_t i = 0; i < count; ++i) data[i] = value(i, rank);
            group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
            ASSERT_EQ(data, expected) << (tcp ? "tcp" : "shm") << " in steps of " << bytes;
          },
          [&](CommunicatorOptions& options) {
            options.env.tcp_only = tcp;
            options.env.shm_chunk_bytes = bytes;
            options.env.net_block_bytes = bytes;
          });
}

// 2048 + 1 + 1 + 1: rounding to f16 inside each host first would give 2048 + 2 = 2050, once at the end gives 2051 ->
// 2052.
TEST(Determinism, HierarchyRoundsHalfPrecisionOnce) {
  run_ranks({"a", "a", "b", "b"}, [](Communicator& group, int rank) {
    std::vector<std::uint16_t> data(3000, f16_of(rank == 0 ? 2048.F : 1.F));
    group.all_reduce(data.data(), data.data(), data.size(), DType::f16, ReduceOp::sum, kTimeout);
    for (const std::uint16_t sum : data) ASSERT_EQ(float_of_f16(sum), 2052.F);
  });
}

}  // namespace
}  // namespace smddp::testing
