// The flight recorder, the counters and the files they are written to.
#include "smddp/flight_recorder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "json.hpp"
#include "ranks.hpp"

namespace smddp::testing {
namespace {

namespace fs = std::filesystem;

OpHeader header_of(std::uint64_t sequence) {
  OpHeader header;
  header.kind = OpKind::all_reduce;
  header.sequence = sequence;
  header.bytes = sequence * 10;
  return header;
}

// A folder that is gone when the test is over.
struct Folder {
  fs::path path;
  Folder() {
    std::string text = (fs::temp_directory_path() / "smddp-test-XXXXXX").string();
    if (!::mkdtemp(text.data())) throw std::runtime_error("mkdtemp");
    path = text;
  }
  ~Folder() { fs::remove_all(path); }
  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(path)) {
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      all.push_back(text.str());
    }
    return all;
  }
};

TEST(FlightRecorder, RemembersTheLastOperations) {
  FlightRecorder recorder(4);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    recorder.begin(header_of(i), FlightRecorder::Clock::now());
    if (i < 10) recorder.end(i == 9, FlightRecorder::Clock::now());
  }
  const std::vector<OpRecord> records = recorder.recent();
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records[0].header.sequence, 7U);
  EXPECT_EQ(records[0].state, OpState::done);
  EXPECT_GE(records[0].ended_ns, records[0].started_ns - 1);
  EXPECT_EQ(records[2].state, OpState::failed);
  EXPECT_EQ(records[3].state, OpState::running);
  EXPECT_EQ(records[3].ended_ns, 0);
  const OpCounters counters = recorder.counters(OpKind::all_reduce);
  EXPECT_EQ(counters.calls, 9U);
  EXPECT_EQ(counters.failures, 1U);
  EXPECT_EQ(counters.bytes, 360U);
  EXPECT_EQ(recorder.counters(OpKind::barrier).calls, 0U);
}

TEST(FlightRecorder, CanRememberNothing) {
  FlightRecorder recorder(0);
  recorder.begin(header_of(1), FlightRecorder::Clock::now());
  recorder.end(false, FlightRecorder::Clock::now());
  EXPECT_TRUE(recorder.recent().empty());
  EXPECT_EQ(recorder.counters(OpKind::all_reduce).calls, 1U);
}

// Readers see whole records only: `bytes` belongs to `sequence` in every one.
TEST(FlightRecorder, IsReadWhileItIsWritten) {
  FlightRecorder recorder(8);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      recorder.begin(header_of(i), FlightRecorder::Clock::now());
      recorder.end(false, FlightRecorder::Clock::now());
    }
  });
  std::size_t seen = 0;
  for (int turn = 0; turn < 20000 || seen == 0; ++turn) {
    std::uint64_t last = 0;
    for (const OpRecord& record : recorder.recent()) {
      ASSERT_EQ(record.header.bytes, record.header.sequence * 10);
      ASSERT_GT(record.header.sequence, last);
      last = record.header.sequence;
      ++seen;
    }
  }
  stop = true;
  writer.join();
}

TEST(FlightRecorder, IsWrittenByEveryRankWhenTheGroupFails) {
  const Folder folder;
  std::atomic<int> reduced{0};
  run_ranks(
      {"a", "a", "b", "b"},
      [&](Communicator& group, int rank) {
        float value = 1;
        group.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, kTimeout);
        // A rank that is late in the first operation would hear of the failure there.
        for (++reduced; reduced < 4;) std::this_thread::yield();
        const std::string text = message_of<MismatchError>([&] { group.broadcast(&value, 4, rank, kTimeout); });
        EXPECT_NE(text.find(folder.path.string()), std::string::npos) << text;
        EXPECT_EQ(text.find("smddp: ", 1), std::string::npos) << "the name twice: " << text;
        EXPECT_NE(group.flight_recorder().find("\"state\": \"failed\""), std::string::npos);
      },
      [&](CommunicatorOptions& options) {
        options.env.flight_recorder_dir = folder.path;
        options.name = "odd/name";
      });
  const std::vector<std::string> texts = folder.texts();
  EXPECT_EQ(texts.size(), 4U);
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("\"group\": \"odd/name\""), std::string::npos) << text;
    EXPECT_NE(text.find("\"sequence\": 1, \"operation\": \"all_reduce\", \"dtype\": \"float32\", "
                        "\"reduce\": \"sum\", \"root\": null, \"bytes\": 4, \"state\": \"done\""),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("\"sequence\": 2, \"operation\": \"broadcast\""), std::string::npos) << text;
  }
}

// Whoever catches the error and makes the group again keeps what the first failure left: it is the one that counts.
TEST(FlightRecorder, IsNotOverwrittenByTheNextGroupOfItsName) {
  const Folder folder;
  for (int turn = 0; turn < 3; ++turn)
    run_ranks(
        {"a", "a"},
        [](Communicator& group, int rank) {
          float value = 1;
          message_of<MismatchError>([&] { group.broadcast(&value, 4, rank, kTimeout); });
        },
        [&](CommunicatorOptions& options) { options.env.flight_recorder_dir = folder.path; });
  EXPECT_EQ(folder.texts().size(), 6U);
}

TEST(FlightRecorder, IsWrittenWhereNobodyCalledTheGroupThatFailed) {
  const Folder folder;
  std::atomic<bool> aborted{false};
  run_ranks(
      {"a", "b"},
      [&](Communicator& group, int rank) {
        group.barrier(kTimeout);
        if (rank == 0) group.abort("enough");
        aborted = aborted || rank == 0;
        while (!aborted || group.stats().find("enough") == std::string::npos) std::this_thread::yield();
      },
      [&](CommunicatorOptions& options) { options.env.flight_recorder_dir = folder.path; });
  const std::vector<std::string> texts = folder.texts();
  EXPECT_EQ(texts.size(), 2U);
  for (const std::string& text : texts) EXPECT_NE(text.find("enough"), std::string::npos) << text;
}

TEST(FlightRecorder, IsWrittenByARankAlone) {
  const Folder folder;
  run_ranks(
      {"a"},
      [](Communicator& group, int) {
        group.abort("enough");
        EXPECT_NE(group.stats().find("\"error\": \"smddp: enough\""), std::string::npos) << group.stats();
        EXPECT_NE(message_of<AbortedError>([&] { group.barrier(kTimeout); }).find("smddp: enough (last operations: "),
                  std::string::npos);
      },
      [&](CommunicatorOptions& options) { options.env.flight_recorder_dir = folder.path; });
  EXPECT_EQ(folder.texts().size(), 1U);
}

TEST(FlightRecorder, SaysWhyItCouldNotBeWritten) {
  run_ranks(
      {"a", "a"},
      [](Communicator& group, int rank) {
        float value = 1;
        const std::string text = message_of<MismatchError>([&] { group.broadcast(&value, 4, rank, kTimeout); });
        EXPECT_NE(text.find("cannot write /dev/null/x/"), std::string::npos) << text;
      },
      [](CommunicatorOptions& options) { options.env.flight_recorder_dir = "/dev/null/x"; });
}

TEST(FlightRecorder, NamesWhomARunningOperationWaitsFor) {
  std::atomic<bool> seen{false};
  run_ranks({"a", "a"}, [&](Communicator& group, int rank) {
    if (rank == 1) {
      while (!seen) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return group.barrier(kTimeout);
    }
    std::thread looker([&] {
      while (group.flight_recorder().find("\"ended\": null, \"waiting_for\": [1]") == std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      seen = true;
    });
    group.barrier(kTimeout);
    looker.join();
  });
}

// The number that follows the first `key` in `text`; throws if there is none.
double number_after(const std::string& key, const std::string& text) {
  return std::stod(text.substr(text.find(key) + key.size()));
}

TEST(Stats, AreOneLineARank) {
  const Folder folder;
  const std::string file = folder.path / "stats.jsonl";
  run_ranks(
      {"a", "b"},
      [](Communicator& group, int) {
        std::vector<float> data(1000);
        for (int i = 0; i < 3; ++i)
          group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
        group.add_exposed(OpKind::all_reduce, std::chrono::milliseconds(1500));
        group.set_blocking(true);
        group.barrier(kTimeout);
      },
      [&](CommunicatorOptions& options) { options.env.stats_file = file; });
  std::ifstream in(file);
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    EXPECT_NE(line.find("\"all_reduce\": {\"calls\": 3, \"failures\": 0, \"bytes\": 12000"), std::string::npos) << line;
    EXPECT_NE(line.find("\"exposed_seconds\": 1.5"), std::string::npos) << line;
    // Somebody was blocked by all of it.
    const std::string barrier = line.substr(line.find("\"barrier\": {\"calls\": 1,"));
    EXPECT_EQ(number_after("\"seconds\": ", barrier), number_after("\"exposed_seconds\": ", barrier)) << line;
    EXPECT_GT(number_after("\"seconds\": ", barrier), 0) << line;
  }
  EXPECT_EQ(lines, 2);
}

// Of all groups, and of those that have ended: what each rank here did is added up, for ranks are threads.
TEST(Totals, GrowWithAllGroupsOfTheProcess) {
  const OpCounters reduced = process_counters(OpKind::all_reduce);
  const OpCounters met = process_counters(OpKind::barrier);
  for (int round = 0; round < 2; ++round) {
    run_ranks({"a", "a"}, [](Communicator& group, int) {
      std::vector<float> data(250);
      group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
      group.add_exposed(OpKind::all_reduce, std::chrono::milliseconds(500));
      group.set_blocking(true);
      group.barrier(kTimeout);
    });
  }
  const OpCounters after = process_counters(OpKind::all_reduce);
  EXPECT_EQ(after.calls - reduced.calls, 4U);
  EXPECT_EQ(after.failures, reduced.failures);
  EXPECT_EQ(after.bytes - reduced.bytes, 4000U);
  EXPECT_GT(after.seconds, reduced.seconds);
  EXPECT_NEAR(after.exposed_seconds - reduced.exposed_seconds, 2.0, 1e-6);
  // Somebody was blocked by all of it.
  const OpCounters after_barriers = process_counters(OpKind::barrier);
  EXPECT_GT(after_barriers.seconds, met.seconds);
  EXPECT_NEAR(after_barriers.exposed_seconds - met.exposed_seconds, after_barriers.seconds - met.seconds, 1e-6);
}

TEST(Json, QuotesWhatStrangersSend) { EXPECT_EQ(json_quoted("a\"b\\c\n\xff"), "\"a\\\"b\\\\c\\u000a\\u00ff\""); }

}  // namespace
}  // namespace smddp::testing
