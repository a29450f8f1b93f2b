// Pure functions: partition, topology, interface filters, environment, texts.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "runtime/cpu_list.hpp"
#include "runtime/operation_queue.hpp"
#include "runtime/task_pool.hpp"
#include "smddp/env.hpp"
#include "smddp/errors.hpp"
#include "smddp/topology.hpp"
#include "smddp/types.hpp"
#include "table.hpp"
#include "transport/interface.hpp"
#include "transport/notice.hpp"

namespace smddp {
namespace {

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PartOf, CoversEverythingOnceInOrder) {
  for (const std::size_t count : {0, 1, 15, 16, 17, 100, 1000, 4097})
    for (int parts = 1; parts <= 9; ++parts) {
      std::size_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Part part = part_of(count, parts, i);
        EXPECT_EQ(part.first, next);
        EXPECT_LE(part.count, count / static_cast<std::size_t>(parts) + 32) << "parts must be even";
        next += part.count;
      }
      EXPECT_EQ(next, count);
    }
}

TEST(BytesOf, RefusesWhatNoProcessHas) {
  const std::size_t all = std::size_t{1} << 47;
  EXPECT_EQ(bytes_of(all / 8 - 1, 8, 1, "all_reduce"), all - 8);
  EXPECT_EQ(bytes_of(all / 8 - 1, 4, 2, "all_gather"), all / 2 - 4);
  EXPECT_EQ(refusal([&] { bytes_of(all, 1, 1, "broadcast"); }),
            "smddp: broadcast of 140737488355328 elements of 1 byte: more than an address space holds");
  for (const std::size_t count : {all / 8, all * 2, ~std::size_t{0}})
    EXPECT_NE(refusal([&] { bytes_of(count, 4, 2, "all_gather"); }), "") << count;
}

TEST(Topology, FindsThePath) {
  const auto path = [](const std::vector<std::string>& hosts, bool tcp) {
    std::vector<RankInfo> ranks;
    for (const std::string& host : hosts) ranks.push_back({host, "10.0.0.1", 1});
    return Topology::from(ranks, 0, tcp).path;
  };
  EXPECT_EQ(path({"a"}, false), Path::alone);
  EXPECT_EQ(path({"a", "a"}, false), Path::host);
  EXPECT_EQ(path({"a", "a"}, true), Path::flat);
  EXPECT_EQ(path({"a", "b"}, false), Path::flat);
  EXPECT_EQ(path({"a", "b", "b"}, false), Path::flat);
  EXPECT_EQ(path({"a", "b", "b", "a"}, false), Path::hierarchical);
}

TEST(Topology, NumbersHostsByTheirLowestRank) {
  const Topology topology = Topology::from({{"x", "", 0}, {"y", "", 0}, {"x", "", 0}, {"y", "", 0}}, 3, false);
  EXPECT_EQ(topology.host, 1);
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.local(), (std::vector<int>{1, 3}));
  EXPECT_EQ(topology.rail(), (std::vector<int>{2, 3}));
}

TEST(Topology, KnowsAMachineThatPlaysSeveralHosts) {
  const auto crowded = [](const std::vector<std::string>& hosts, const std::vector<std::string>& machines, int cores) {
    std::vector<RankInfo> ranks;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      ranks.push_back({hosts[r], "10.0.0.1", 1});
      ranks.back().machine = machines[r];
      ranks.back().cores = cores;
    }
    return Topology::from(ranks, 0, false).crowded;
  };
  EXPECT_TRUE(crowded({"a", "b", "c"}, {"m", "m", "m"}, 2));
  EXPECT_TRUE(crowded({"a", "b", "b"}, {"m", "m", "m"}, 2));
  EXPECT_FALSE(crowded({"a", "b", "c"}, {"m", "m", "m"}, 3));
  EXPECT_FALSE(crowded({"a", "b", "c"}, {"m", "n", "m"}, 2));
  EXPECT_FALSE(crowded({"a", "a", "a"}, {"m", "m", "m"}, 2));
  EXPECT_FALSE(crowded({"a", "b", "c"}, {"m", "m", "m"}, 0));
  EXPECT_FALSE(crowded({"a", "b", "c"}, {kUnknownMachine, kUnknownMachine, kUnknownMachine}, 2));
}

TEST(RankInfo, SurvivesTheStore) {
  const RankInfo info =
      rank_info_from(to_text(RankInfo{"boot-17", "fe80::1", 4711, "node-a", "0.1.0", true, "m-1", 8}));
  EXPECT_EQ(info.host_id, "boot-17");
  EXPECT_EQ(info.address, "fe80::1");
  EXPECT_EQ(info.port, 4711);
  EXPECT_EQ(info.name, "node-a");
  EXPECT_EQ(info.version, "0.1.0");
  EXPECT_TRUE(info.efa);
  EXPECT_EQ(info.machine, "m-1");
  EXPECT_EQ(info.cores, 8);
  EXPECT_THROW(rank_info_from("boot-17 fe80::1 4711 node-a 0.1.0 - m-1 -8"), UsageError);
  EXPECT_THROW(rank_info_from("one"), UsageError);
}

const std::vector<Interface> kMachine{{"lo", "127.0.0.1", true},      {"docker0", "172.17.0.1", true},
                                      {"eth0", "2001:db8::1", false}, {"eth0", "10.0.0.5", true},
                                      {"eth01", "10.1.0.5", true},    {"ib0", "10.2.0.5", true}};

std::string nccl(const std::string& filter) {
  const Interface* found = match_nccl(filter, kMachine);
  return found ? found->address : "";
}

TEST(Interfaces, NcclFilters) {
  EXPECT_EQ(nccl("eth"), "10.0.0.5");
  EXPECT_EQ(nccl("=eth01"), "10.1.0.5");
  EXPECT_EQ(nccl("=eth"), "");
  EXPECT_EQ(nccl("ib,mlx"), "10.2.0.5");
  EXPECT_EQ(nccl("^docker0"), "10.0.0.5");
  EXPECT_EQ(nccl("^docker,eth"), "10.2.0.5");
  EXPECT_EQ(nccl("^=eth0,docker0"), "10.1.0.5");
  EXPECT_EQ(nccl("lo"), "127.0.0.1");
  EXPECT_EQ(nccl("wlan"), "");
  EXPECT_EQ(nccl(""), "");
}

TEST(Interfaces, OrderOfVariables) {
  std::map<std::string, std::string> environment;
  const auto choose = [&] { return choose_address(kMachine, [&](const char* name) { return environment[name]; }); };
  EXPECT_EQ(choose(), "172.17.0.1") << "nothing set, no MASTER_ADDR: the first that is not the loopback";
  environment["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(choose(), "127.0.0.1");
  environment["SM_NETWORK_INTERFACE_NAME"] = "eth0";
  EXPECT_EQ(choose(), "10.0.0.5");
  environment["GLOO_SOCKET_IFNAME"] = "gone,ib0";
  EXPECT_EQ(choose(), "10.2.0.5");
  environment["NCCL_SOCKET_IFNAME"] = "wlan";
  EXPECT_EQ(choose(), "10.2.0.5") << "a filter of another library that matches nothing is passed over";
  environment["NCCL_SOCKET_IFNAME"] = "=eth01";
  EXPECT_EQ(choose(), "10.1.0.5");
  environment["SMDDP_SOCKET_IFNAME"] = "docker0";
  EXPECT_EQ(choose(), "172.17.0.1");
  environment["SMDDP_SOCKET_IFNAME"] = "wlan";
  EXPECT_THROW(choose(), UsageError);
}

TEST(Environment, RefusesNonsense) {
  ::setenv("SMDDP_SHM_CHUNK_BYTES", "1M", 1);
  EXPECT_THROW(Env::from_process(), UsageError);
  ::setenv("SMDDP_SHM_CHUNK_BYTES", "8192", 1);
  EXPECT_EQ(Env::from_process().shm_chunk_bytes, 8192U);
  ::unsetenv("SMDDP_SHM_CHUNK_BYTES");
  ::setenv("SMDDP_TRANSPORT", "udp", 1);
  EXPECT_THROW(Env::from_process(), UsageError);
  ::unsetenv("SMDDP_TRANSPORT");
  EXPECT_FALSE(Env::from_process().tcp_only);
  ::setenv("SMDDP_NET", "fabric", 1);
  ::setenv("SMDDP_FABRIC_PROVIDER", "tcp;ofi_rxm", 1);
  EXPECT_EQ(Env::from_process().net, Net::fabric);
  EXPECT_EQ(Env::from_process().fabric_provider, "tcp;ofi_rxm");
  ::setenv("SMDDP_NET", "efa", 1);
  EXPECT_EQ(refusal([] { Env::from_process(); }), "smddp: SMDDP_NET=efa (environment): expected auto, tcp or fabric");
  ::unsetenv("SMDDP_NET");
  ::unsetenv("SMDDP_FABRIC_PROVIDER");
}

TEST(Environment, TheProgramsSettingsYieldToIt) {
  const Settings given{{"SMDDP_ONE_SHOT_BYTES", "100"}, {"SMDDP_NET_BLOCK_BYTES", "5000"}};
  ::setenv("SMDDP_ONE_SHOT_BYTES", "200", 1);
  const Env env = Env::from_process(given);
  EXPECT_EQ(env.one_shot_bytes, 200U);
  EXPECT_EQ(env.net_block_bytes, 5000U);
  ::unsetenv("SMDDP_ONE_SHOT_BYTES");
  EXPECT_EQ(refusal([] { Env::from_process({{"SMDDP_ONE_SHOT_BYTES", "-1"}}); }),
            "smddp: SMDDP_ONE_SHOT_BYTES=-1 (given by the program): expected a whole number from 0 to 2^44");
  EXPECT_EQ(refusal([] { Env::from_process({{"SMDDP_SPEED", "11"}}); }),
            "smddp: SMDDP_SPEED=11 (given by the program): no such setting");
}

TEST(Environment, SaysWhatASettingAccepts) {
  ::setenv("SMDDP_ONE_SHOT_BYTES", "200", 1);
  EXPECT_EQ(expected_instead("SMDDP_ONE_SHOT_BYTES", "foo"), "a whole number from 0 to 2^44");
  EXPECT_EQ(expected_instead("SMDDP_ONE_SHOT_BYTES", "100"), "");
  ::unsetenv("SMDDP_ONE_SHOT_BYTES");
  EXPECT_EQ(refusal([] { expected_instead("SMDDP_SPEED", "11"); }), "smddp: SMDDP_SPEED: no such setting");
}

// What is wrong is for all ranks to hear.
TEST(Environment, KeepsTheDefaultOfWhatItRefuses) {
  std::string said;
  const Env env = Env::from_process({{"SMDDP_SHM_DIRECT", "perhaps"}, {"SMDDP_ONE_SHOT_BYTES", "100"}}, said);
  EXPECT_EQ(said, "smddp: SMDDP_SHM_DIRECT=perhaps (given by the program): expected auto, always or never");
  EXPECT_EQ(env.shared(), Env::from_process({{"SMDDP_ONE_SHOT_BYTES", "100"}}).shared());
}

TEST(Environment, ReadsListsOfCores) {
  EXPECT_EQ(cpus_from("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(cpus_from("5"), std::vector<int>{5});
  for (const char* text : {"", ",", "1,", ",1", "3-1", "1-", "-1", "a", "1 2", "1-2-3", "99999999999"})
    EXPECT_FALSE(cpus_from(text)) << text;
  EXPECT_EQ(refusal([] { Env::from_process({{"SMDDP_CPUS", "all"}}); }),
            "smddp: SMDDP_CPUS=all (given by the program): expected a list of cores, such as 0-3,8");
  EXPECT_EQ(Env().shared().count("SMDDP_CPUS"), 0U) << "each rank has its own";
}

TEST(TaskPool, RunsOnTheCoresItIsGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(last), &allowed)) --last;
  TaskPool pool(1, "placed");
  pool.run_on({last, CPU_SETSIZE - 1});
  cpu_set_t found;
  CPU_ZERO(&found);
  pool.post([&] { ::sched_getaffinity(0, sizeof found, &found); });
  ASSERT_TRUE(pool.wait_idle(std::chrono::seconds(20)));
  EXPECT_EQ(CPU_COUNT(&found), 1);
  EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(last), &found));
  EXPECT_THROW(pool.run_on({}), UsageError);
}

TEST(Environment, MistypedSettingsAreFound) {
  std::vector<std::string> expected = unknown_settings();  // of whoever runs this
  for (const char* name : {"SMDDP_STREAM", "SMDDP_SOCKET_IFNAME", "SMDDP_STREAMS"}) ::setenv(name, "4", 1);
  expected.emplace_back("SMDDP_STREAM");
  EXPECT_EQ(unknown_settings(), expected);
  for (const char* name : {"SMDDP_STREAM", "SMDDP_SOCKET_IFNAME", "SMDDP_STREAMS"}) ::unsetenv(name);
}

TEST(Environment, AGroupUsesRankZerosSettings) {
  Env first;
  first.one_shot_bytes = 77;
  first.tcp_only = true;
  first.host_id = "a";
  Env second;
  second.host_id = "b";
  second.adopt(settings_from(to_text(first.shared())), version());
  EXPECT_EQ(second.one_shot_bytes, 77U);
  EXPECT_TRUE(second.tcp_only);
  EXPECT_EQ(second.host_id, "b") << "a rank's own";
  const std::string newer = refusal([&] { second.adopt({{"SMDDP_SPEED", "11"}}, "9.9.9"); });
  EXPECT_NE(newer.find("9.9.9"), std::string::npos) << newer;
  EXPECT_NE(newer.find(version()), std::string::npos) << newer;
  EXPECT_THROW(second.adopt({{"SMDDP_HOST_ID", "c"}}, version()), UsageError) << "not rank 0's to say";
  EXPECT_THROW(settings_from("SMDDP_TRANSPORT"), UsageError);
}

TEST(Table, SurvivesTheStore) {
  Table table;
  table.version = wire_version();
  table.nonce = make_nonce();
  table.settings = Env().shared();
  table.ranks = {{"boot-1", "10.0.0.1", 17, "node-a", "0.1.0"}, {"boot-2", "10.0.0.2", 18, "node-b", "0.1.0"}};
  const Table back = table_from(to_text(table));
  EXPECT_EQ(back.nonce, table.nonce);
  EXPECT_EQ(back.settings, table.settings);
  ASSERT_EQ(back.ranks.size(), 2U);
  EXPECT_EQ(to_text(back.ranks[1]), to_text(table.ranks[1]));
  table.version = "9.9.9";
  const std::string text = refusal([&] { table_from(to_text(table)); });
  EXPECT_NE(text.find("rank 0 has smddp 9.9.9"), std::string::npos) << text;
}

TEST(Notice, IsNotCutInsideACharacter) {
  Notice farewell;
  farewell.type = Notice::Type::farewell;
  for (int i = 0; i < 1000; ++i) farewell.text += i == 0 ? "x" : "\u00e9";
  NoticeReader reader;
  const std::string bytes = to_bytes(farewell);
  reader.feed(bytes.data(), bytes.size());
  const std::string text = reader.next()->text;
  EXPECT_EQ(text.size() % 2, 1U);
  EXPECT_GT(text.size(), 900U);
  EXPECT_EQ(text, farewell.text.substr(0, text.size()));
}

TEST(TaskPool, RunsInOrderAndDrains) {
  std::vector<int> order;
  TaskPool pool(1, "test");
  for (int i = 0; i < 100; ++i) pool.post([&order, i] { order.push_back(i); });
  EXPECT_TRUE(pool.wait_idle(std::chrono::seconds(5)));
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  pool.post([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
  EXPECT_FALSE(pool.wait_idle(std::chrono::milliseconds(10)));
  pool.drain();
  pool.post([&order] { order.clear(); });
  EXPECT_EQ(order.size(), 100U) << "a drained pool ignores tasks";
}

TEST(TaskPool, CallersWorkTakesItsPlaceInTheOrder) {
  std::vector<int> order;
  TaskPool pool(1, "test");
  ASSERT_TRUE(pool.try_enter());
  EXPECT_FALSE(pool.try_enter()) << "one at a time";
  pool.post([&order] { order.push_back(2); });
  EXPECT_FALSE(pool.wait_idle(std::chrono::milliseconds(50))) << "tasks wait for the caller's work";
  order.push_back(1);
  pool.leave();
  EXPECT_TRUE(pool.wait_idle(std::chrono::seconds(5)));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  ASSERT_TRUE(pool.try_enter());
  std::thread drainer([&pool] { pool.drain(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  pool.leave();
  drainer.join();
  EXPECT_FALSE(pool.try_enter()) << "drained";
}

TEST(TaskPool, CallersAndTasksExcludeOneAnother) {
  TaskPool pool(1, "test");
  std::atomic<bool> over{false};
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> entered{0};
  const auto work = [&] {
    const int now = ++inside;
    if (now > 1) most = now;
    --inside;
  };
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!over) {
        if (!pool.try_enter()) continue;
        work();
        ++entered;
        pool.leave();
      }
    });
  others.emplace_back([&] {
    while (!over) pool.wait_idle(std::chrono::milliseconds(1));
  });
  int ran = 0;
  for (int i = 0; i < 5000; ++i)
    pool.post([&] {
      work();
      ++ran;
    });
  while (entered < 5000) std::this_thread::yield();
  over = true;
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(pool.wait_idle(std::chrono::seconds(10)));
  EXPECT_TRUE(pool.try_enter()) << "open again";
  pool.leave();
  EXPECT_EQ(ran, 5000);
  EXPECT_EQ(most, 0);
}

// Runs `callbacks` after `operation`, which does nothing but wake whoever waits for it.
std::future<void> post(OperationQueue& queue, std::function<void()> operation, std::function<void()> callbacks) {
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  queue.post(
      [done, operation = std::move(operation)] {
        operation();
        done->set_value();
        return true;
      },
      std::move(callbacks));
  return future;
}

bool in_time(const std::future<void>& future) {
  return future.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
}

// What DDP's PowerSGD hook does: a callback issues an operation and waits for it.
TEST(OperationQueue, ACallbackMayWaitForWhatItIssues) {
  OperationQueue queue;
  std::atomic<int> reached{0};
  const auto nothing = [] {};
  std::function<void()> nest = [&] {
    EXPECT_EQ(queue.depth_of_this_thread(), ++reached);
    if (reached < 4) {
      EXPECT_TRUE(in_time(post(queue, nothing, nest)));
    }
  };
  EXPECT_EQ(queue.depth_of_this_thread(), 0);
  EXPECT_TRUE(in_time(post(queue, nothing, nest)));
  EXPECT_TRUE(queue.wait_idle(std::chrono::seconds(10)));
  EXPECT_EQ(reached, 4);
}

TEST(OperationQueue, WhatACallbackIssuesComesBeforeTheProgramsNextOperation) {
  OperationQueue queue;
  std::string order;
  const auto named = [&](char name) { return [&order, name] { order += name; }; };
  std::promise<void> all_posted;
  post(queue, named('a'), [&] {
    all_posted.get_future().wait();
    // Nobody waits for the first of these.
    post(queue, named('b'), [&] { post(queue, named('c'), [] {}); });
    post(queue, named('d'), named('e'));
  });
  post(queue, named('f'), [&] {
    EXPECT_TRUE(queue.try_enter());
    order += 'g';
    queue.leave();
  });
  post(queue, named('h'), [] {});
  EXPECT_FALSE(queue.try_enter()) << "callbacks are running";
  all_posted.set_value();
  EXPECT_TRUE(queue.wait_idle(std::chrono::seconds(10)));
  EXPECT_EQ(order, "abcdefgh");
}

TEST(OperationQueue, CallbacksMayIssueInOtherQueuesAndBack) {
  OperationQueue first;
  OperationQueue second;
  const auto nothing = [] {};
  std::atomic<bool> back{false};
  EXPECT_TRUE(in_time(post(first, nothing, [&] {
    EXPECT_EQ(second.depth_of_this_thread(), 0);
    EXPECT_TRUE(in_time(post(second, nothing, [&] {
      EXPECT_EQ(first.depth_of_this_thread(), 1) << "the first waits for this";
      back = in_time(post(first, nothing, nothing));
    })));
  })));
  EXPECT_TRUE(first.wait_idle(std::chrono::seconds(10)));
  EXPECT_TRUE(second.wait_idle(std::chrono::seconds(10)));
  EXPECT_TRUE(back);
}

TEST(OperationQueue, AChainOfCallbacksMayBeLong) {
  OperationQueue queue;
  int links = 0;
  std::function<void()> chain = [&] {
    if (++links < 10'000) post(queue, [] {}, chain);
  };
  post(queue, [] {}, chain);
  EXPECT_TRUE(queue.wait_idle(std::chrono::seconds(20)));
  queue.drain();
  EXPECT_EQ(links, 10'000);
}

TEST(Texts, NameWhatHappened) {
  OpHeader header;
  header.kind = OpKind::broadcast;
  header.sequence = 7;
  header.bytes = 12;
  header.root = 3;
  header.dtype = DType::i64;
  EXPECT_EQ(describe(header), "broadcast #7 (int64, from rank 3, 12 bytes)");
  EXPECT_EQ(join_ranks({1, 3}), "ranks 1, 3");
  EXPECT_THROW(throw_error(ErrorKind::peer, "x"), PeerError);
}

}  // namespace
}  // namespace smddp
