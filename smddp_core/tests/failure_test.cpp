// What happens when ranks disagree, stay away, die or give up: an error that names the cause, in bounded time, on every
// rank.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "ranks.hpp"
#include "rendezvous.hpp"
#include "table.hpp"

namespace smddp::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kShort{300};

struct Case {
  const char* name;
  Hosts hosts;
  const char* provider = "";  ///< libfabric's, for the network; none for TCP.
  Inside inside = Inside::slots;
  bool relay = false;  ///< Small messages between hosts go by way of others.
};
class Failures : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string reason = cannot_use(GetParam().provider);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  void run(const std::function<void(Communicator&, int)>& body) {
    std::atomic<int> set_up{0};
    const auto last = Clock::now() + kTimeout;
    const auto once_all_are_set_up = [&](Communicator& group, int rank) {
      // A rank that is still being set up would hear of the others' failure there, and throw before its body.
      ++set_up;
      while (set_up < size() && Clock::now() < last) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      body(group, rank);
    };
    run_ranks(GetParam().hosts, once_all_are_set_up, [](CommunicatorOptions& options) {
      use_fabric(options, GetParam().provider);
      go_by(options, GetParam().inside);
      options.env.net_relay = GetParam().relay ? When::always : When::never;
    });
  }
  int size() const { return static_cast<int>(GetParam().hosts.size()); }
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST_P(Failures, DifferentSizesAreReported) {
  run([&](Communicator& group, int rank) {
    std::vector<float> data(2000, 1.F);
    const std::size_t count = rank == size() - 1 ? 1000 : 2000;
    const std::string text = message_of<MismatchError>(
        [&] { group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout); });
    expect_contains(text, "8000 bytes");
    expect_contains(text, "4000 bytes");
    expect_contains(text, "all_reduce #1");
  });
}

TEST_P(Failures, DifferentOperationsAreReported) {
  run([&](Communicator& group, int rank) {
    float value = 1;
    const std::string text = message_of<MismatchError>([&] {
      if (rank == 0)
        group.barrier(kTimeout);
      else
        group.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, kTimeout);
    });
    expect_contains(text, "barrier #1");
    expect_contains(text, "all_reduce #1 (sum, float32, 4 bytes)");
    // Inside a host of the hierarchy the sum may be complete before the other hosts' headers are seen.
    if (group.topology().path != Path::hierarchical) {
      EXPECT_EQ(value, 1.F) << "data of a mismatched operation must not be touched";
    }
  });
}

TEST_P(Failures, TheMissingRankIsNamed) {
  std::atomic<int> done{0};
  run([&](Communicator& group, int rank) {
    if (rank == size() - 1) {
      while (done < size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      // The late rank learns why the group is dead.
      expect_contains(message_of<TimeoutError>([&] { group.barrier(kTimeout); }), "reported by rank");
      return;
    }
    const std::string text = message_of<TimeoutError>([&] { group.barrier(kShort); });
    ++done;
    expect_contains(text, "barrier #1");
    expect_contains(text, "waiting for rank");
    // Neighbours of the missing rank name it; on other rails the rank that waits for it may be named instead.
    if (group.topology().path != Path::hierarchical) expect_contains(text, std::to_string(size() - 1));
    EXPECT_TRUE(group.failed());
    EXPECT_EQ(message_of<TimeoutError>([&] { group.barrier(kTimeout); }), text) << "the first cause stays";
  });
}

TEST_P(Failures, AbortWakesEveryone) {
  std::atomic<int> done{0};
  run([&](Communicator& group, int rank) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      group.abort("had enough");
      while (done < size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const auto start = Clock::now();
    expect_contains(message_of<AbortedError>([&] { group.barrier(kTimeout); }), "had enough");
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(3));
    ++done;
  });
}

TEST_P(Failures, LeavingInGoodOrderHurtsNobody) {
  for (int turn = 0; turn < 10; ++turn)
    run([&](Communicator& group, int rank) {
      std::vector<float> data(5000, 1.F);
      if (rank == turn % size()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
      ASSERT_EQ(data[4999], static_cast<float>(size()));
      // The communicator goes away at once, while others may still be copying.
    });
}

// Of four hosts that share cores, two add up sums on the way and two, whose type is summed wider, cannot.
TEST(Mismatch, RanksThatDoubleBesideRanksThatRelay) {
  for (const bool lower : {false, true})
    run_ranks(
        {"a", "b", "c", "d"},
        [&](Communicator& group, int rank) {
          std::vector<float> data(std::size_t{64} << 10);
          const bool wide = (rank < 2) == lower;
          const std::string text = message_of<MismatchError>([&] {
            group.all_reduce(data.data(), data.data(), wide ? data.size() : 2 * data.size(),
                             wide ? DType::f32 : DType::bf16, ReduceOp::sum, kTimeout);
          });
          expect_contains(text, "float32");
          expect_contains(text, "bfloat16");
        },
        [](CommunicatorOptions& options) {
          options.env.net_relay = When::always;
          options.env.net_one_shot_bytes = std::size_t{16} << 20;
          options.env.socket_buffer_bytes = 8192;
        });
}

// A small broadcast goes from rank to rank, a large one to all at once, and each rank takes its own root for the one.
TEST(Mismatch, BroadcastsOfOtherSizesAndRootsWhereRanksRelay) {
  for (const Hosts& hosts : {Hosts{"a", "b", "c", "d"}, Hosts{"a", "b", "c", "d", "e"}})
    for (int odd = 0; odd < static_cast<int>(hosts.size()); ++odd)
      for (const bool large : {false, true})
        run_ranks(
            hosts,
            [&](Communicator& group, int rank) {
              std::vector<char> data(std::size_t{1} << 20);
              const bool other = rank == odd;
              const std::size_t bytes = other && large ? data.size() : 1000;
              const int root = other && !large ? 1 : 0;
              const std::string text =
                  message_of<MismatchError>([&] { group.broadcast(data.data(), bytes, root, kTimeout); });
              expect_contains(text, "rank " + std::to_string(odd));
              expect_contains(text, large ? "1048576 bytes" : "from rank 1");
            },
            [](CommunicatorOptions& options) {
              options.env.net_relay = When::always;
              options.env.socket_buffer_bytes = 8192;
            });
}

// The release alone does not tell builds apart whose notices differ.
TEST(Failure, ARankZeroOfAnotherBuildIsRefused) {
  MemoryStore store;
  const std::string nonce(Nonce().size(), '0');
  const std::string root =
      nonce + " " + to_text(RankInfo{"a", "127.0.0.1", 9, "node-a", std::string(version()) + "/2"});
  store.set("root", root);
  const CommunicatorOptions options = options_for({"a", "b"}, 1);
  const std::string text = message_of<UsageError>([&] { Communicator(store, options); });
  expect_contains(text, std::string("rank 0 on node-a has smddp ") + version() + "/2, this rank " + wire_version());
  Rendezvous place(store, "default", {}, kTimeout);
  expect_contains(message_of<PeerError>([&] { place.check_excuses(root); }),
                  "rank 1 did not join: rank 0 on node-a has");
}

TEST_P(Failures, LeavingWithAReasonIsReportedWithIt) {
  run([&](Communicator& group, int rank) {
    if (rank == size() - 1) return group.leave("its process ended with KeyError: 7");
    expect_contains(message_of<PeerError>([&] { group.barrier(kTimeout); }),
                    "closed its connection (its process ended with KeyError: 7)");
  });
}

TEST_P(Failures, LeavingEarlyIsReported) {
  run([&](Communicator& group, int rank) {
    if (rank == size() - 1) return;
    expect_contains(message_of<PeerError>([&] { group.barrier(kTimeout); }), "closed its connection");
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Failures,
                         ::testing::Values(Case{"host3", {"a", "a", "a"}},
                                           Case{"mailboxes3", {"a", "a", "a"}, "", Inside::mailboxes},
                                           Case{"direct3", {"a", "a", "a"}, "", Inside::direct},
                                           Case{"directHosts2x2", {"a", "a", "b", "b"}, "", Inside::direct},
                                           Case{"tcp3", {"a", "b", "b"}}, Case{"hosts2x2", {"a", "a", "b", "b"}},
                                           Case{"relayed5", {"a", "b", "c", "d", "e"}, "", Inside::slots, true},
                                           Case{"relayed4", {"a", "b", "c", "d"}, "", Inside::slots, true},
                                           Case{"fabric3", {"a", "b", "c"}, "tcp;ofi_rxm"},
                                           Case{"fabricHosts2x2", {"a", "a", "b", "b"}, "tcp;ofi_rxm"},
                                           Case{"sockets2", {"a", "b"}, "sockets"}),
                         [](const ::testing::TestParamInfo<Case>& chosen) { return std::string(chosen.param.name); });

// A rank that is elsewhere reads nothing: what the others tell it meanwhile must neither block them nor be cut in half.
TEST(Failure, NotesThatNobodyReadsDoNoHarm) {
  constexpr int kNotes = 20000;
  std::atomic<bool> noted{false};
  std::atomic<int> told{0};
  run_ranks({"a", "b"}, [&](Communicator& group, int rank) {
    if (rank == 0) {
      PeerMessage message{true, 1, 0, 4, std::string(900, 'x'), 0};
      message.number = group.issued(message);
      for (int n = 0; n < kNotes; ++n) group.awaits(message);
      noted = true;
    }
    while (!noted) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    group.barrier(kTimeout);
    if (rank == 0) group.abort("enough");
    expect_contains(message_of<AbortedError>([&] {
                      for (;;) group.barrier(kTimeout);
                    }),
                    "enough");
    // The word comes after all notes: a rank that left meanwhile would be missed first.
    ++told;
    for (int patience = 2000; told < 2 && patience > 0; --patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
}

// What another library carries out, and compares nothing of.
void agree(Communicator& group, const DelegatedCall& call) { group.agree(call, group.began("x", -1, 0), kTimeout); }

TEST(Failure, AnOperationOfOthersAmongOursIsReported) {
  run_ranks({"a", "a", "b"}, [&](Communicator& group, int rank) {
    const DelegatedCall gather{OpKind::gather, "gather (Float, 40 bytes)", {}, {}};
    agree(group, gather);
    const std::string text = message_of<MismatchError>([&] {
      if (rank == 0) agree(group, gather);
      group.barrier(kTimeout);
    });
    expect_contains(text, "gather #2 (carried out by another back end)");
  });
}

TEST(Failure, CallsOfOthersThatDifferAreReported) {
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b", "b"}})
    run_ranks(hosts, [&](Communicator& group, int rank) {
      const std::string size = rank == 2 ? "44" : "40";
      expect_contains(message_of<MismatchError>(
                          [&] { agree(group, {OpKind::gather, "gather (Float, " + size + " bytes)", {}, {}}); }),
                      "rank 0 called gather (Float, 40 bytes), rank 2 called gather (Float, 44 bytes)");
    });
}

TEST(Failure, LongCallsOfOthersThatDifferAtTheirEndsAreReported) {
  run_ranks({"a", "a"}, [&](Communicator& group, int rank) {
    const std::string same(1000, 'x');
    agree(group, {OpKind::all_reduce, same, {}, {}});
    expect_contains(
        message_of<MismatchError>([&] { agree(group, {OpKind::all_reduce, same + std::to_string(rank), {}, {}}); }),
        "xxx..., all in all ");
  });
}

// Looks after the group as a wait in another library does, until `until`.
void wait_elsewhere(const Communicator& group, const std::atomic<bool>& until) {
  while (!until) {
    group.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Failure, WhoDoesNotAnswerThatItWaitsInAnOperationOfOthersIsFound) {
  std::atomic<bool> asked{false};
  run_ranks({"a", "b", "c"}, [&](Communicator& group, int rank) {
    const DelegatedCall gather{OpKind::gather, "gather (Float, 40 bytes)", {}, {}};
    agree(group, gather);
    if (rank < 2) group.set_waiting_elsewhere(true);
    if (rank == 0) {
      EXPECT_EQ(group.silent(), std::vector<int>{2});
      asked = true;
    }
    if (rank == 1) wait_elsewhere(group, asked);
    group.set_waiting_elsewhere(false);
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    agree(group, gather);
  });
}

// Rank 0 waits for rank 1, which waits for a message from rank 2.
TEST(Failure, WhoWaitsForAMessageIsNotTheCause) {
  std::atomic<bool> told{false};
  run_ranks({"a", "b", "c"}, [&](Communicator& group, int rank) {
    const PeerMessage message{false, 2, 0, 4, "Float", 0};
    if (rank == 0) {
      const std::string text = message_of<TimeoutError>([&] { group.barrier(std::chrono::milliseconds(500)); });
      expect_contains(text, "waiting for rank 2");
      EXPECT_EQ(text.find("waiting for rank 1"), std::string::npos) << text;
      told = true;
    }
    if (rank == 1) {
      group.awaits(message);
      // Rank 0's error ends it, or that rank 0 has raised it.
      message_of<TimeoutError>([&] { wait_elsewhere(group, told); });
      group.stops_awaiting(message);
    }
    while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
}

TEST(Failure, BytesThatDoNotMatchAreReported) {
  const auto calls = [](int rank, std::uint64_t odd) {
    DelegatedCall call{OpKind::all_to_all, "all_to_all (Float)", {}, {}};
    // Rank r gives r + 1 bytes to each, and knows it of the others.
    for (std::uint64_t r = 0; r < 3; ++r) {
      call.gives.push_back(static_cast<std::uint64_t>(rank) + 1);
      call.takes.push_back(r + 1);
    }
    if (rank == 1) call.takes[2] = odd;
    return call;
  };
  run_ranks({"a", "a", "b"}, [&](Communicator& group, int rank) {
    agree(group, calls(rank, 3));
    expect_contains(message_of<MismatchError>([&] { agree(group, calls(rank, 9)); }),
                    "rank 2 called all_to_all (Float) with 3 bytes for rank 1, which called it with room for 9");
  });
}

TEST(Failure, WhoDoesNotComeToAnOperationOfOthersIsNamed) {
  std::atomic<int> told{0};
  run_ranks({"a", "a", "b"}, [&](Communicator& group, int rank) {
    if (rank != 2) {
      const std::uint64_t record = group.began("gather", -1, 40);
      expect_contains(
          message_of<TimeoutError>([&] { group.agree({OpKind::gather, "gather", {}, {}}, record, kShort); }),
          "gather #1 (carried out by another back end): Timed out");
      expect_contains(group.flight_recorder(), "\"sequence\": 1, \"operation\": \"gather\"");
      ++told;
    }
    while (told < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
}

// Not rank 0, which has joined: whoever gives up first asks it whom it waits for.
TEST(Failure, MissingRankAtTheMeeting) {
  for (const int first : {0, 1}) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      CommunicatorOptions options = options_for({"a", "a", "a"}, rank);
      options.env.init_timeout = (rank == first ? 5 : 50) * kShort;
      const std::string text = message_of<TimeoutError>([&] { Communicator group(store, options); });
      expect_contains(text, "rank 2 did not join");
    });
  }
}

// Chunks of another size on one rank would be read from the wrong place.
TEST(Failure, RanksUseRankZerosSettings) {
  for (const Hosts& hosts : {Hosts{"a", "a"}, Hosts{"a", "b"}, Hosts{"a", "a", "b", "b"}})
    run_ranks(
        hosts,
        [&](Communicator& group, int) {
          std::vector<float> data(50000, 1.F);
          group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
          EXPECT_EQ(data[49999], static_cast<float>(hosts.size()));
        },
        [](CommunicatorOptions& options) {
          options.env.shm_chunk_bytes = std::size_t{4096} << options.rank;
          options.env.one_shot_bytes = std::size_t{100000} * static_cast<std::size_t>(options.rank);
          options.env.net_block_bytes = std::size_t{5000} << options.rank;
        });
}

TEST(Failure, TooLittleSharedMemory) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorOptions options = options_for({"a", "a"}, rank);
    options.env.shm_chunk_bytes = std::size_t{1} << 44;
    const std::string text = message_of<Error>([&] { Communicator group(store, options); });
    expect_contains(text, "cannot reserve");
    expect_contains(text, "--shm-size");
  });
}

TEST(Failure, UsageErrorsLeaveTheGroupUsable) {
  run_ranks({"a", "a"}, [](Communicator& group, int) {
    float value = 1;
    EXPECT_THROW(group.broadcast(&value, 4, 2, kTimeout), UsageError);
    for (const std::size_t bytes : {~std::size_t{0}, std::size_t{1} << 63, std::size_t{1} << 47})
      expect_contains(message_of<UsageError>([&] { group.broadcast(&value, bytes, 0, kTimeout); }),
                      "more than an address space holds");
    EXPECT_THROW(group.all_reduce(&value, &value, 1, DType::bytes, ReduceOp::sum, kTimeout), UsageError);
    EXPECT_THROW(group.all_gather(&value, {&value}, 4, kTimeout), UsageError);
    group.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, kTimeout);
    EXPECT_EQ(value, 2.F);
  });
}

// 2^46 bytes are an address space's, and many pieces.
TEST(Failure, PostingPiecesEndsWithTheTimeout) {
  for (const Hosts& hosts : {Hosts{"a", "b"}, Hosts{"a", "b", "c"}})
    run_ranks(hosts, [](Communicator& group, int) {
      std::byte value{};
      const auto start = Clock::now();
      expect_contains(message_of<TimeoutError>([&] { group.broadcast(&value, std::size_t{1} << 46, 0, kShort); }),
                      "broadcast #1 (from rank 0, 70368744177664 bytes)");
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    });
}

TEST(Failure, AGroupHasAPlaceForEachRank) {
  MemoryStore store;
  CommunicatorOptions options;
  const auto said = [&](int rank, int size) {
    options.rank = rank;
    options.size = size;
    options.timeout = kShort;
    return message_of<UsageError>([&] { Communicator(store, options); });
  };
  EXPECT_EQ(said(0, 2147483647), "smddp: a group of 2147483647 ranks: expected 1 to 1048576");
  EXPECT_EQ(said(0, 0), "smddp: a group of 0 ranks: expected 1 to 1048576");
  EXPECT_EQ(said(2, 2), "smddp: rank 2 of 2: expected 0 to 1");
  EXPECT_EQ(said(-1, 2), "smddp: rank -1 of 2: expected 0 to 1");
}

TEST(Failure, ForkedChildIsRefused) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork of a process with threads";
#endif
  run_ranks({"a", "a"}, [](Communicator& group, int rank) {
    if (rank == 0) {
      const pid_t child = ::fork();
      if (child == 0)
        ::_exit(message_of<UsageError>([&] { group.barrier(kShort); }).find("forked child") == std::string::npos);
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    group.barrier(kTimeout);
  });
}

}  // namespace
}  // namespace smddp::testing
