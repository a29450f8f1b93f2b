// The wire over libfabric by itself, and how a group comes to use it. The collectives over it are in
// collectives_test.cpp, the failures of a group in failure_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>

#include "fabric_plan.hpp"
#include "ranks.hpp"
#include "transport/connect.hpp"
#include "transport/control.hpp"

namespace smddp::testing {
namespace {

constexpr char kProvider[] = "tcp;ofi_rxm";
const Nonce kNonce = make_nonce();

struct Case {
  const char* name;
  const char* provider;
  FabricPace pace;
};

FabricPace pace_of(std::size_t segment_bytes, int window, bool bounce) {
  FabricPace pace;
  pace.segment_bytes = segment_bytes;
  pace.window = window;
  pace.bounce = bounce;
  return pace;
}

/// A rank of a test: its wire to all others, and the control plane beside it.
struct Node {
  int rank;
  Wire& wire;
  Control& control;
};

// Connects `control` to all others.
void meet(MemoryStore& store, int rank, int size, Control& control) {
  const auto [listener, port] = listen_on("127.0.0.1");
  store.set("port/" + std::to_string(rank), std::to_string(port));
  const Deadline deadline(kTimeout);
  Meeting meeting(listener, rank, {}, handshake_key("", kNonce), deadline, [] {});
  const int channel = static_cast<int>(Channel::control);
  for (int r = 0; r < size; ++r) {
    const int there = std::stoi(store.get("port/" + std::to_string(r), kTimeout));
    if (r > rank) meeting.expect({r, channel});
    if (r < rank) meeting.call({r, channel}, {"host", "127.0.0.1", there, "host", version()});
  }
  meeting.run([&](Line line, Socket socket) { control.add(line.first, std::move(socket)); });
}

void run_nodes(const Case& now, int size, const std::function<void(Node&)>& body) {
  MemoryStore store;
  run_threads(size, [&](int rank) {
    Control control(rank);
    meet(store, rank, size, control);
    auto port = open_fabric({now.provider, "127.0.0.1", rank});
    store.set("fabric/" + std::to_string(rank), port->address());
    std::map<int, std::string> addresses;
    for (int r = 0; r < size; ++r)
      if (r != rank) addresses[r] = store.get("fabric/" + std::to_string(r), kTimeout);
    const auto wire = connect_fabric(std::move(port), rank, addresses, kNonce, control, now.pace, Deadline(kTimeout));
    Node node{rank, *wire, control};
    body(node);
  });
}

Op op_for(std::chrono::milliseconds timeout = kTimeout) { return Op{OpHeader{}, Deadline(timeout)}; }

std::vector<unsigned char> pattern(std::size_t bytes, int from, int to) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(i * 31 + i / 251 + static_cast<std::size_t>(from * 7 + to * 3));
  return data;
}

const std::size_t kSizes[] = {1, 4096, 4097, 100'000, 3, 700'001, 32, 65536};

class FabricWires : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string reason = cannot_use(GetParam().provider);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(FabricWires, PiecesOfAllSizesArriveInOrder) {
  constexpr int size = 3;
  run_nodes(GetParam(), size, [](Node& node) {
    for (int turn = 0; turn < 3; ++turn) {
      std::map<int, std::vector<std::vector<unsigned char>>> sent;
      std::map<int, std::vector<std::vector<unsigned char>>> received;
      std::map<int, std::vector<std::size_t>> order;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == node.rank) continue;
        for (const std::size_t bytes : kSizes) {
          sent[peer].push_back(pattern(bytes, node.rank, peer));
          received[peer].emplace_back(bytes);
        }
        for (std::size_t i = 0; i < std::size(kSizes); ++i) {
          node.wire.send(peer, sent[peer][i].data(), kSizes[i]);
          node.wire.recv(peer, received[peer][i].data(), kSizes[i], [&order, peer, i] { order[peer].push_back(i); });
        }
      }
      const Op op = op_for();
      node.wire.run(op);
      std::vector<std::size_t> in_order(std::size(kSizes));
      std::iota(in_order.begin(), in_order.end(), 0);
      for (const auto& [peer, pieces] : received) {
        ASSERT_EQ(order[peer], in_order);
        for (std::size_t i = 0; i < pieces.size(); ++i)
          ASSERT_EQ(pieces[i], pattern(kSizes[i], peer, node.rank)) << kSizes[i] << " bytes from " << peer;
      }
    }
  });
}

TEST_P(FabricWires, APieceMayPostMore) {
  run_nodes(GetParam(), 2, [](Node& node) {
    const int peer = 1 - node.rank;
    constexpr int rounds = 200;
    int ball = 0;
    int mine = 0;
    std::function<void()> returned = [&] {
      if (++ball >= rounds) return;
      mine = ball;
      node.wire.send(peer, &mine, sizeof(mine));
      if (ball + 1 < rounds) node.wire.recv(peer, &ball, sizeof(ball), returned);
    };
    if (node.rank == 0) {
      node.wire.send(peer, &mine, sizeof(mine));
      node.wire.recv(peer, &ball, sizeof(ball), returned);
    } else {
      node.wire.recv(peer, &ball, sizeof(ball), returned);
    }
    const Op op = op_for();
    node.wire.run(op);
    EXPECT_GE(ball, rounds - 2);
  });
}

// Told only after what is in front of it was looked at: there a header explains it better.
TEST_P(FabricWires, APieceOfAnotherSizeIsRefusedInItsTurn) {
  for (const std::size_t wrong : {std::size_t{100}, std::size_t{3000}})
    run_nodes(GetParam(), 2, [wrong](Node& node) {
      std::vector<char> header(32);
      std::vector<char> data(wrong);
      std::vector<char> expected(1000);
      const Op op = op_for();
      if (node.rank == 0) {
        node.wire.send(1, header.data(), header.size());
        node.wire.send(1, data.data(), data.size());
        // The other rank may close before this one knows that its message has left.
        try {
          node.wire.run(op);
        } catch (const Error&) {
        }
        return;
      }
      bool looked = false;
      node.wire.recv(0, header.data(), header.size(), [&] { looked = true; });
      node.wire.recv(0, expected.data(), expected.size());
      const std::string text = message_of<MismatchError>([&] { node.wire.run(op); });
      EXPECT_NE(text.find("different operations"), std::string::npos) << text;
      EXPECT_TRUE(looked);
    });
}

// A caller whose operation failed frees its buffers: nothing may be written there any more.
TEST_P(FabricWires, MemoryOfAFailedOperationIsNotTouched) {
  std::promise<void> given_up;
  std::shared_future<void> after = given_up.get_future().share();
  run_nodes(GetParam(), 2, [&](Node& node) {
    std::vector<char> data(500'000, 'x');
    const Op op = op_for(std::chrono::milliseconds(300));
    if (node.rank == 1) {
      node.wire.recv(0, data.data(), data.size());
      const std::string text = message_of<TimeoutError>([&] { node.wire.run(op); });
      given_up.set_value();
      EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      EXPECT_EQ(data, std::vector<char>(data.size(), 'x'));
      EXPECT_THROW(node.wire.progress(op), Error) << "the wire is dead";
      return;
    }
    after.wait();
    const std::vector<char> late(500'000, 'y');
    const Op second = op_for(std::chrono::milliseconds(300));
    node.wire.send(1, late.data(), late.size());
    EXPECT_THROW(node.wire.run(second), Error);
  });
}

TEST_P(FabricWires, ARankThatLeftIsReported) {
  run_nodes(GetParam(), 2, [](Node& node) {
    if (node.rank == 1) return;
    char data[100];
    node.wire.recv(1, data, sizeof(data));
    const Op op = op_for();
    const std::string text = message_of<PeerError>([&] { node.wire.run(op); });
    EXPECT_NE(text.find("rank 1 closed its connection"), std::string::npos) << text;
  });
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricWires,
                         ::testing::Values(Case{"tcp", kProvider, pace_of(std::size_t{512} << 10, 8, false)},
                                           Case{"tcpSmall", kProvider, pace_of(4096, 1, false)},
                                           Case{"tcpRegistered", kProvider, pace_of(10'000, 3, true)},
                                           Case{"sockets", "sockets", pace_of(65536, 4, false)}),
                         [](const ::testing::TestParamInfo<Case>& chosen) { return std::string(chosen.param.name); });

class FabricPlans : public ::testing::Test {
 protected:
  /// Plans as two ranks on two hosts; rank r's interface has addresses[r]. The result, or the error's text, by rank.
  std::vector<std::string> plan(const Env& env, bool efa, const std::vector<std::string>& addresses) {
    MemoryStore store;
    std::vector<std::string> results(2);
    std::vector<RankInfo> ranks = ranks_;
    for (RankInfo& info : ranks) info.efa = efa;
    run_threads(2, [&](int rank) {
      const auto share = [&](const std::string& mine) {
        store.set(std::to_string(rank), mine);
        return std::vector<std::string>{store.get("0", kTimeout), store.get("1", kTimeout)};
      };
      const auto at = static_cast<std::size_t>(rank);
      results[at] = message_of<Error>([&] {
        const FabricPlan made =
            plan_fabric(env, ranks, Topology::from(ranks, rank, env.tcp_only), addresses[at], share);
        throw Error(ErrorKind::system, made.port ? "fabric" : "TCP");
      });
    });
    return results;
  }
  const std::vector<RankInfo> ranks_{{"a", "127.0.0.1", 1, "node-a"}, {"b", "127.0.0.1", 2, "node-b"}};
  const std::vector<std::string> both_{"127.0.0.1", "127.0.0.1"};
};

using Results = std::vector<std::string>;

TEST_F(FabricPlans, ByItselfOnlyWithEfaEverywhere) {
  Env env;
  EXPECT_EQ(plan(env, false, both_), (Results{"smddp: TCP", "smddp: TCP"}));
  env.tcp_only = true;
  EXPECT_EQ(plan(env, true, both_), (Results{"smddp: TCP", "smddp: TCP"})) << "TCP was asked for";
}

TEST_F(FabricPlans, FallsBackTogether) {
  Env env;
  env.fabric_provider = "no_such_provider";
  EXPECT_EQ(plan(env, true, both_), (Results{"smddp: TCP", "smddp: TCP"}));
}

// Longer ones are fetched by the receiver, which the layer does even over a connection that it has freed.
TEST_F(FabricPlans, MessagesThroughRxmAreEagerOnes) {
  const std::string reason = cannot_use(kProvider);
  if (!reason.empty()) GTEST_SKIP() << reason;
  const char* const set = std::getenv("FI_OFI_RXM_BUFFER_SIZE");
  EXPECT_EQ(open_fabric({kProvider, "127.0.0.1", 0})->longest(), set ? std::stoul(set) : 16384U);
  Env env;
  env.net = Net::fabric;
  env.fabric_provider = kProvider;
  const Topology topology = Topology::from(ranks_, 0, false);
  // A rank whose messages are shorter decides for all.
  const Share share = [](const std::string& mine) {
    return std::vector<std::string>{mine, mine.substr(0, mine.find(' ')) + " 1000"};
  };
  EXPECT_EQ(plan_fabric(env, ranks_, topology, "127.0.0.1", share).longest, 1000U);
  const Share garbled = [](const std::string& mine) { return std::vector<std::string>{mine, mine + "x"}; };
  const std::string text = message_of<Error>([&] { plan_fabric(env, ranks_, topology, "127.0.0.1", garbled); });
  EXPECT_NE(text.find("unreadable address in the store"), std::string::npos) << text;
}

TEST_F(FabricPlans, ForcedItNamesWhoCannot) {
  const std::string reason = cannot_use(kProvider);
  if (!reason.empty()) GTEST_SKIP() << reason;
  Env env;
  env.net = Net::fabric;
  env.fabric_provider = kProvider;
  EXPECT_EQ(plan(env, false, both_), (Results{"smddp: fabric", "smddp: fabric"}));
  // TEST-NET-3: no interface of this machine has it.
  const Results failed = plan(env, false, {"127.0.0.1", "203.0.113.9"});
  EXPECT_EQ(failed[0], failed[1]) << "all ranks say the same";
  EXPECT_NE(failed[0].find("rank 1 on node-b"), std::string::npos) << failed[0];
  EXPECT_NE(failed[0].find("203.0.113.9"), std::string::npos) << failed[0];
  EXPECT_EQ(failed[0].find("rank 0"), std::string::npos) << failed[0];
}

TEST(Fabric, AGroupSaysWhatItUses) {
  const std::string reason = cannot_use(kProvider);
  if (!reason.empty()) GTEST_SKIP() << reason;
  run_ranks(
      {"a", "b"},
      [](Communicator& group, int) {
        EXPECT_EQ(group.topology().describe().rfind("flat (libfabric, tcp;ofi_rxm on ", 0), 0U)
            << group.topology().describe();
      },
      [](CommunicatorOptions& options) { use_fabric(options, kProvider); });
}

TEST(Fabric, AMissingProviderFailsTheGroupOnAllRanks) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorOptions options = options_for({"a", "b"}, rank);
    use_fabric(options, "no_such_provider");
    const std::string text = message_of<Error>([&] { Communicator group(store, options); });
    EXPECT_NE(text.find("SMDDP_NET=fabric, and not every rank can use it: rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("no_such_provider"), std::string::npos) << text;
  });
}

// A network that lets nothing through (EFA: a security group without a rule for itself) is found at the start.
TEST(Fabric, SilenceAtTheStartIsReported) {
  const std::string reason = cannot_use(kProvider);
  if (!reason.empty()) GTEST_SKIP() << reason;
  MemoryStore store;
  std::atomic<bool> done{false};
  run_threads(2, [&](int rank) {
    Control control(rank);
    meet(store, rank, 2, control);
    auto port = open_fabric({kProvider, "127.0.0.1", 0});
    if (rank == 1) {
      store.set("address", port->address());
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const std::string address = store.get("address", kTimeout);
    const std::string text = message_of<TimeoutError>([&] {
      connect_fabric(std::move(port), 0, {{1, address}}, kNonce, control, {}, Deadline(std::chrono::milliseconds(300)));
    });
    done = true;
    EXPECT_NE(text.find("no message from rank 1 over tcp;ofi_rxm"), std::string::npos) << text;
    EXPECT_NE(text.find("SMDDP_NET=tcp"), std::string::npos) << text;
  });
}

// Groups of one process share the device and have endpoints of their own.
TEST(Fabric, GroupsSideBySide) {
  const std::string reason = cannot_use(kProvider);
  if (!reason.empty()) GTEST_SKIP() << reason;
  std::vector<std::thread> threads;
  for (int g = 0; g < 3; ++g)
    threads.emplace_back([g] {
      run_ranks(
          {"a", "b"},
          [g](Communicator& group, int rank) {
            std::vector<float> data(20'000);
            for (int turn = 0; turn < 20; ++turn) {
              std::fill(data.begin(), data.end(), static_cast<float>(rank + g + turn));
              group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
              for (const float sum : data) ASSERT_EQ(sum, static_cast<float>(1 + 2 * (g + turn)));
            }
          },
          [](CommunicatorOptions& options) { use_fabric(options, kProvider); });
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace smddp::testing
