// Mailboxes of each two ranks of a host: who writes them when, and that results are what they are without.
#include <gtest/gtest.h>

#include <complex>
#include <cstdint>
#include <random>
#include <set>
#include <thread>

#include "arenas.hpp"
#include "ranks.hpp"
#include "transport/arena.hpp"

namespace smddp::testing {
namespace {

TEST(Mailboxes, EveryTwoRanksHaveTheirOwn) {
  constexpr int kRanks = 5;
  Arena arena = Arena::create({kRanks, 65536, make_nonce(), 0});
  std::set<std::byte*> begins;
  for (int from = 0; from < kRanks; ++from)
    for (int to = 0; to < kRanks; ++to)
      if (from != to) begins.insert(arena.mailbox(from, to));
  EXPECT_EQ(begins.size(), std::size_t{kRanks * (kRanks - 1)});
  EXPECT_GE(arena.mailbox_bytes(), 65536U / 2 / kRanks - 256);
  const std::byte* last = nullptr;
  for (const std::byte* begin : begins) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin) % 64, 0U);
    if (last) {
      EXPECT_GE(begin - last, static_cast<std::ptrdiff_t>(arena.mailbox_bytes()));
    }
    last = begin;
  }
}

TEST(Mailboxes, WhoReadOneWritesItNext) {
  run_arenas([](Arena& arena, int rank, const Op& op) {
    const int other = 1 - rank;
    for (int turn = 0; turn < 3; ++turn) {
      std::byte* const mine = arena.mailbox(rank, other);
      std::byte* const theirs = arena.mailbox(other, rank);
      const auto said = [turn](int by) { return static_cast<std::byte>(10 * turn + by); };
      std::fill_n(mine, arena.mailbox_bytes(), said(rank));
      const Arena::Round round = arena.begin(op, 0);
      arena.publish(op, round);
      arena.await_all_published(op, round, true);
      EXPECT_EQ(theirs[0], said(other));
      EXPECT_EQ(theirs[arena.mailbox_bytes() - 1], said(other));
      arena.turn_mailboxes();
      EXPECT_EQ(arena.mailbox(rank, other), theirs);
      EXPECT_EQ(arena.mailbox(other, rank), mine);
    }
  });
}

void always_mailboxes(CommunicatorOptions& options) { go_by(options, Inside::mailboxes); }

TEST(Mailboxes, GiveTheSameBitsAsSlots) {
  const auto sums = [](Inside inside) {
    return rounded_sums(1, [inside](CommunicatorOptions& options) { go_by(options, inside); });
  };
  EXPECT_EQ(sums(Inside::slots), sums(Inside::mailboxes));
}

// Whatever follows what, with ranks that come late by turns: nothing is written that somebody still reads.
TEST(Mailboxes, OperationsOfAllKindsFollowOneAnother) {
  run_ranks(
      {"a", "a", "a"},
      [](Communicator& group, int rank) {
        std::mt19937 same(20261126);
        std::mt19937 own(static_cast<unsigned>(rank));
        constexpr std::size_t kMost = 3000;
        std::vector<float> data(kMost);
        std::vector<float> all(3 * kMost);
        for (int turn = 0; turn < 400; ++turn) {
          const std::size_t count = same() % kMost + 1;
          std::fill(data.begin(), data.end(), static_cast<float>(rank + turn));
          if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
          const std::vector<void*> blocks{all.data(), &all[count], &all[2 * count]};
          switch (same() % 4) {
            case 0:
              group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
              ASSERT_EQ(data[0], static_cast<float>(3 + 3 * turn));
              ASSERT_EQ(data[count - 1], data[0]);
              break;
            case 1:
              group.all_gather(data.data(), blocks, count * sizeof(float), kTimeout);
              for (std::size_t r = 0; r < 3; ++r) {
                ASSERT_EQ(all[r * count], static_cast<float>(static_cast<int>(r) + turn));
                ASSERT_EQ(all[r * count + count - 1], all[r * count]);
              }
              break;
            case 2:
              for (std::size_t i = 0; i < 3 * count; ++i)
                all[i] = static_cast<float>(rank + static_cast<int>(i / count));
              group.reduce_scatter({all.data(), &all[count], &all[2 * count]}, data.data(), count, DType::f32,
                                   ReduceOp::sum, kTimeout);
              ASSERT_EQ(data[0], static_cast<float>(3 + 3 * rank));
              ASSERT_EQ(data[count - 1], data[0]);
              break;
            default:
              group.broadcast(data.data(), count * sizeof(float), turn % 3, kTimeout);
              ASSERT_EQ(data[count - 1], static_cast<float>(turn % 3 + turn));
          }
        }
      },
      always_mailboxes);
}

// Messages that fill a round and that do not, of every width: no part is larger than the mailbox that it goes through.
TEST(Mailboxes, HoldTheLargestPartOfEveryType) {
  for (const int ranks : {3, 5, 6})
    run_ranks(
        std::vector<std::string>(static_cast<std::size_t>(ranks), "a"),
        [ranks](Communicator& group, int rank) {
          const auto check = [&](auto zero, DType type) {
            using T = decltype(zero);
            for (const std::size_t bytes : {8192, 16384, 50000, 400000}) {
              std::vector<T> data(bytes / sizeof(T));
              const auto at = [](std::size_t i) { return static_cast<int>(i % 13); };
              for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<T>(at(i) + rank);
              group.all_reduce(data.data(), data.data(), data.size(), type, ReduceOp::sum, kTimeout);
              for (std::size_t i = 0; i < data.size(); ++i)
                ASSERT_EQ(data[i], static_cast<T>(at(i) * ranks + ranks * (ranks - 1) / 2))
                    << ranks << " ranks, " << name_of(type) << ", " << bytes << " bytes, element " << i;
            }
          };
          check(std::int8_t{}, DType::i8);
          check(std::int16_t{}, DType::i16);
          check(float{}, DType::f32);
          check(double{}, DType::f64);
          check(std::int64_t{}, DType::i64);
          check(std::complex<double>{}, DType::c128);
        },
        [](CommunicatorOptions& options) {
          always_mailboxes(options);
          options.env.shm_chunk_bytes = 16384;
        });
}

std::string chosen_with(When mailboxes, std::size_t chunk_bytes) {
  ::testing::internal::CaptureStderr();
  run_ranks(
      {"a", "a"}, [](Communicator&, int) {},
      [&](CommunicatorOptions& options) {
        options.env.shm_chunk_bytes = chunk_bytes;
        options.env.shm_mailboxes = mailboxes;
        options.env.info = true;
      });
  return ::testing::internal::GetCapturedStderr();
}

TEST(Mailboxes, AreAsTheUserSays) {
  EXPECT_NE(chosen_with(When::always, 4096).find(" KiB, mailboxes always, "), std::string::npos);
  EXPECT_NE(chosen_with(When::never, 0).find(" KiB, no mailboxes (SMDDP_SHM_MAILBOXES=never), "), std::string::npos);
}

TEST(Mailboxes, AreTriedWhereTheyHoldEnoughAndEveryRankHasACore) {
  const std::string log = chosen_with(When::automatic, 0);
  const bool cores = log.find(", a core for each rank") != std::string::npos;
  EXPECT_NE(log.find(cores ? "KiB, mailboxes where they turn out to be faster, " : "KiB, mailboxes always, "),
            std::string::npos)
      << log;
  EXPECT_NE(chosen_with(When::automatic, 4096).find("KiB, no mailboxes (too small"), std::string::npos);
}

}  // namespace
}  // namespace smddp::testing
