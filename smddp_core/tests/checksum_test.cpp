// Data that is changed on its way is noticed; data that is not arrives.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "ranks.hpp"
#include "security/crc32c.hpp"
#include "transport/checksum_wire.hpp"

namespace smddp::testing {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, PublishedVectors) {
  const std::string zeros(32, '\0');
  EXPECT_EQ(crc32c(0, zeros.data(), zeros.size()), 0x8A9136AAU);
  const std::string ones(32, '\xff');
  EXPECT_EQ(crc32c(0, ones.data(), ones.size()), 0x62A8AB43U);
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xE3069283U);
}

TEST(Crc32c, InstructionAndTableAgree) {
  std::minstd_rand random(7);
  std::string data;
  for (std::size_t bytes = 0; bytes < 300; ++bytes) {
    EXPECT_EQ(crc32c(0, data.data(), data.size()), crc32c_by_table(0, data.data(), data.size()));
    const std::uint32_t part = crc32c(0, data.data(), bytes / 2);
    EXPECT_EQ(crc32c(part, data.data() + bytes / 2, bytes - bytes / 2), crc32c(0, data.data(), bytes));
    data += static_cast<char>(random());
  }
}

// A wire to oneself that flips one bit of what is sent as the `bad`-th piece.
class Loop final : public Wire {
 public:
  explicit Loop(int bad) : bad_(bad) {}
  void send(int, const void* data, std::size_t bytes, Done done) override {
    std::string piece(static_cast<const char*>(data), bytes);
    if (count_++ == bad_) piece[bytes / 2] = static_cast<char>(piece[bytes / 2] ^ 4);
    sent_.push_back(piece);
    if (done) done();
  }
  void recv(int, void* data, std::size_t bytes, Done done) override {
    wanted_.push_back({data, bytes, std::move(done)});
  }
  void progress(const Op&) override {
    while (!wanted_.empty() && !sent_.empty()) {
      const auto wanted = wanted_.front();
      wanted_.pop_front();
      ASSERT_EQ(sent_.front().size(), wanted.bytes);
      std::memcpy(wanted.data, sent_.front().data(), wanted.bytes);
      sent_.pop_front();
      if (wanted.done) wanted.done();
    }
  }
  void wait(const Op& op) override { progress(op); }
  bool idle() const override { return wanted_.empty() && sent_.empty(); }

 private:
  struct Wanted {
    void* data;
    std::size_t bytes;
    Done done;
  };
  int bad_;
  int count_ = 0;
  std::deque<std::string> sent_;
  std::deque<Wanted> wanted_;
};

std::string exchange(int bad, int& done) {
  const Topology topology = Topology::from({{"a", "10.0.0.1", 1, "node-a"}, {"b", "10.0.0.2", 1, "node-b"}}, 0, false);
  ChecksumWire wire(std::make_unique<Loop>(bad));
  const std::string first(1000, 'x');
  const std::string second(77, 'y');
  std::string into_first(1000, ' ');
  std::string into_second(77, ' ');
  wire.send(1, first.data(), first.size());
  wire.send(1, second.data(), second.size());
  wire.recv(1, into_first.data(), into_first.size(), [&] { ++done; });
  wire.recv(1, into_second.data(), into_second.size(), [&] { ++done; });
  Op op{OpHeader{}, Deadline(kTimeout)};
  op.topology = &topology;
  const std::string text = message_of<Error>([&] { wire.run(op); });
  if (text.empty()) {
    EXPECT_EQ(into_first, first);
    EXPECT_EQ(into_second, second);
  }
  return text;
}

TEST(Checksum, AFlippedBitIsAnErrorThatNamesBothRanks) {
  int done = 0;
  EXPECT_EQ(exchange(-1, done), "");
  EXPECT_EQ(done, 2);
  for (int bad = 0; bad < 4; ++bad) {  // either piece, either sum
    done = 0;
    const std::string text = exchange(bad, done);
    EXPECT_NE(text.find("from rank 1 on node-b (10.0.0.2) to rank 0 on node-a (10.0.0.1) were changed on the way"),
              std::string::npos)
        << text;
    EXPECT_EQ(done, bad / 2) << "nobody may go on with what is wrong";
  }
}

TEST(Checksum, GroupsWorkWithIt) {
  for (const Hosts& hosts : {Hosts{"a", "b", "c"}, Hosts{"a", "a", "b", "b"}})
    run_ranks(
        hosts,
        [&](Communicator& group, int rank) {
          std::vector<float> data(100000, 1.F);
          group.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, kTimeout);
          EXPECT_EQ(data[99999], static_cast<float>(hosts.size()));
          group.broadcast(data.data(), 300000, 1, kTimeout);
          std::vector<float> part(10);
          std::vector<const void*> ins(hosts.size(), data.data());
          group.reduce_scatter(ins, part.data(), part.size(), DType::f32, ReduceOp::max, kTimeout);
          std::vector<int> all(hosts.size());
          std::vector<void*> outs;
          for (int& one : all) outs.push_back(&one);
          group.all_gather(&rank, outs, sizeof(int), kTimeout);
          EXPECT_EQ(all.back(), static_cast<int>(hosts.size()) - 1);
        },
        [](CommunicatorOptions& options) { options.env.checksum = true; });
}

}  // namespace
}  // namespace smddp::testing
