// Messages between two ranks that another library carries: the ranks compare what they wait for.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "ranks.hpp"
#include "smddp/peer_message.hpp"
#include "transport/message_log.hpp"
#include "transport/notice.hpp"

namespace smddp::testing {
namespace {

PeerMessage message(bool sends, int peer, std::uint64_t bytes, int tag = 0, const std::string& type = "Float") {
  return {sends, peer, tag, bytes, type, 0};
}

PeerMessage numbered(PeerMessage one, std::uint64_t number) {
  one.number = number;
  return one;
}

// As this rank's peer 1 would say it.
bool objects_when_told(MessageLog& log, PeerMessage theirs, std::uint64_t number) {
  return log.learn(numbered(std::move(theirs), number)).has_value();
}

bool objects_when_issued(MessageLog& log, PeerMessage own) { return log.issue(own).has_value(); }

TEST(MessageLog, ComparesTheNthWithTheNth) {
  MessageLog log;
  EXPECT_FALSE(objects_when_issued(log, message(true, 1, 40)));
  EXPECT_FALSE(objects_when_issued(log, message(true, 1, 80)));
  EXPECT_FALSE(objects_when_told(log, message(false, 1, 40), 1));
  EXPECT_FALSE(objects_when_told(log, message(false, 1, 80), 2));
  EXPECT_TRUE(objects_when_told(log, message(false, 1, 40), 2)) << "another size";
  EXPECT_TRUE(objects_when_told(log, message(false, 1, 40, 0, "Int"), 1)) << "another type";
  EXPECT_FALSE(objects_when_told(log, message(false, 1, 50, 7), 1)) << "another tag";
  EXPECT_FALSE(objects_when_told(log, message(false, 2, 50), 1)) << "another peer";
  EXPECT_FALSE(objects_when_told(log, message(true, 1, 50), 1)) << "it sends too";
}

TEST(MessageLog, RemembersWhatPeersWaitFor) {
  MessageLog log;
  EXPECT_FALSE(objects_when_told(log, message(true, 1, 40), 2));
  EXPECT_FALSE(objects_when_issued(log, message(false, 1, 8)));
  PeerMessage own = message(false, 1, 44);
  const auto found = log.issue(own);
  ASSERT_TRUE(found);
  EXPECT_EQ(own.number, 2U);
  EXPECT_EQ(in_words(found->own, "rank 1"), "recv from rank 1 (Float, 44 bytes, tag 0)");
  EXPECT_EQ(in_words(found->theirs, "rank 0"), "send to rank 0 (Float, 40 bytes, tag 0)");
  EXPECT_FALSE(objects_when_issued(log, message(false, 1, 44))) << "that was the third";
}

TEST(MessageLog, ComparesNoReceivesOfARankThatReceivesFromAny) {
  MessageLog log;
  log.issue_from_any();
  EXPECT_FALSE(objects_when_issued(log, message(false, 1, 8)));
  EXPECT_FALSE(objects_when_told(log, message(true, 1, 40), 1));
  EXPECT_FALSE(objects_when_issued(log, message(true, 1, 8)));
  EXPECT_TRUE(objects_when_told(log, message(false, 1, 40), 1)) << "what it sends is known";
}

TEST(MessageLog, IsBounded) {
  MessageLog log;
  for (int tag = 0; tag < 70'000; ++tag) EXPECT_FALSE(objects_when_issued(log, message(true, 1, 40, tag)));
  EXPECT_FALSE(objects_when_told(log, message(false, 1, 41, 1), 1)) << "long ago";
  EXPECT_FALSE(objects_when_told(log, message(false, 1, 41, 69'999), 1)) << "not counted";
  EXPECT_TRUE(objects_when_told(log, message(false, 1, 41, 65'535), 1));
  for (int number = 1; number < 1000; ++number) EXPECT_FALSE(objects_when_told(log, message(true, 1, 40), 100'000));
}

TEST(TravellingTag, TellsMessagesApart) {
  std::set<int> seen;
  std::size_t all = 0;
  for (const int tag : {0, 1, 2, 0x7fffffff})
    for (const char* type : {"Float", "Int", "BFloat16"})
      for (std::uint64_t bytes = 0; bytes < 4000; bytes += 4, ++all) {
        const int on_its_way = travelling_tag(message(true, 1, bytes, tag, type));
        EXPECT_GE(on_its_way, 0);
        EXPECT_EQ(on_its_way, travelling_tag(message(false, 5, bytes, tag, type)));
        seen.insert(on_its_way);
      }
  EXPECT_GT(seen.size() + 3, all);
}

TEST(Notice, CarriesAMessage) {
  Notice sent;
  sent.type = Notice::Type::message;
  sent.route = {3, 1, 77, 1, 12, 4096};
  sent.text = "BFloat16";
  const std::string bytes = to_bytes(sent);
  NoticeReader reader;
  reader.feed(bytes.data(), bytes.size());
  const auto got = reader.next();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->text, sent.text);
  EXPECT_EQ(to_bytes(*got), bytes);
}

class Messages : public ::testing::TestWithParam<Hosts> {};

// Ranks 1 and 2, which in groups of several ranks a host are not connected.
TEST_P(Messages, ThatDifferEndTheGroup) {
  run_ranks(GetParam(), [](Communicator& group, int rank) {
    if (rank == 1 || rank == 2) {
      PeerMessage own = message(rank == 1, 3 - rank, rank == 1 ? 40 : 44);
      own.number = group.issued(own);
      EXPECT_EQ(own.number, 1U);
      if (rank == 2) group.awaits(own);
    }
    std::string said;
    for (int turn = 0; turn < 500 && said.empty(); ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      try {
        group.check();
      } catch (const MismatchError& error) {
        said = error.what();
      }
    }
    EXPECT_NE(
        said.find("rank 1 called send to rank 2 (Float, 40 bytes, tag 0), rank 2 called recv from rank 1 (Float, 44 "
                  "bytes, tag 0)"),
        std::string::npos)
        << said << " on rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Messages,
                         ::testing::Values(Hosts{"a", "a", "a"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b", "b"}),
                         [](const ::testing::TestParamInfo<Hosts>& chosen) {
                           std::string name;
                           for (const auto& host : chosen.param) name += host;
                           return name;
                         });

}  // namespace
}  // namespace smddp::testing
