// Peers that may not be in an operation yet get little of its data, so that ranks which run ahead leave the links to
// those that do not.
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/net_tier.hpp"
#include "ranks.hpp"
#include "transport/checksum_wire.hpp"
#include "transport/mesh.hpp"

namespace smddp::testing {
namespace {

constexpr std::size_t kMessage = std::size_t{256} << 10;
constexpr std::size_t kFloor = std::size_t{16} << 10;

// Rank 0's mesh, and the far ends of its connections.
class Far : public ::testing::TestWithParam<int> {
 protected:
  Far() : control_(0), message_(kMessage, 'x') {
    std::vector<Peers> streams(static_cast<std::size_t>(GetParam()));
    for (Peers& peers : streams)
      for (const int rank : {1, 2}) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
          throw_system("socketpair", errno);
        peers[rank] = Socket(ends[0]);
        far_.emplace_back(rank, Socket(ends[1]));
      }
    mesh_ = std::make_unique<Mesh>(std::move(streams), control_, 1);
  }

  Op op(std::chrono::milliseconds timeout = kTimeout) const { return Op{OpHeader{}, Deadline(timeout)}; }

  /// What has come to `rank`'s ends and was not read before.
  std::size_t came_to(int rank) {
    std::size_t came = 0;
    std::string into(kMessage, ' ');
    for (auto& [whose, socket] : far_)
      while (whose == rank) {
        const ssize_t n = ::recv(socket.fd(), into.data(), into.size(), 0);
        if (n <= 0) break;
        came += static_cast<std::size_t>(n);
      }
    return came;
  }

  /// Lets rank 0 send until nothing more comes.
  std::size_t send_to(int rank) {
    std::size_t all = 0;
    for (int idle = 0; idle < 3; ++idle) {
      mesh_->progress(op());
      const std::size_t came = came_to(rank);
      all += came;
      if (came > 0) idle = 0;
    }
    return all;
  }

  Control control_;
  const std::string message_;
  std::vector<std::pair<int, Socket>> far_;
  std::unique_ptr<Mesh> mesh_;
};

TEST_P(Far, APeerOnHoldGetsTheRestOnceItIsReleased) {
  mesh_->hold({0, 1, 2});
  mesh_->send(1, message_.data(), kMessage);
  mesh_->send(2, message_.data(), kMessage);
  const std::size_t early = send_to(1);
  EXPECT_GT(early, 0U);
  EXPECT_LE(early, kFloor);
  mesh_->release(1);
  EXPECT_EQ(early + send_to(1), kMessage);
  EXPECT_LE(send_to(2), kFloor) << "the other one is on hold";
  EXPECT_FALSE(mesh_->idle());
  mesh_->release(2);
  EXPECT_GT(send_to(2), 0U);
  EXPECT_TRUE(mesh_->idle());
}

TEST_P(Far, NobodyIsOnHoldUnasked) {
  mesh_->send(1, message_.data(), kMessage);
  EXPECT_EQ(send_to(1), kMessage);
}

TEST_P(Far, WhoWaitsForAReleaseSleeps) {
  mesh_->hold({1, 2});
  mesh_->send(1, message_.data(), kMessage);
  const std::clock_t before = std::clock();
  EXPECT_THROW(mesh_->run(op(std::chrono::milliseconds(500))), TimeoutError);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.25);
}

// 16 KiB each take 2 ms at 24 MB/s, which any machine's sockets do.
TEST_P(Far, FastLinksBringMore) {
  constexpr std::size_t kMuch = std::size_t{16} << 20;
  std::string into(kMuch, ' ');
  std::thread peer([this] {
    const std::string sent(kMuch / far_.size() * 2, 'y');
    for (auto& [rank, socket] : far_)
      if (rank == 1) send_all(socket, sent.data(), sent.size(), Deadline(kTimeout));
  });
  const std::size_t piece = kMuch / static_cast<std::size_t>(GetParam());
  mesh_->recv(1, into.data(), piece * static_cast<std::size_t>(GetParam()));
  mesh_->run(op());
  peer.join();
  EXPECT_EQ(into, std::string(kMuch, 'y'));
  mesh_->hold({0, 1, 2});
  mesh_->send(1, message_.data(), kMessage);
  EXPECT_GT(send_to(1), kFloor);
}

INSTANTIATE_TEST_SUITE_P(Streams, Far, ::testing::Values(1, 4), ::testing::PrintToStringParamName());

// Keeps what it is asked; peers' headers come when the test says so.
class Recorder final : public Wire {
 public:
  void send(int, const void*, std::size_t, Done) override {}
  void recv(int peer, void* data, std::size_t bytes, Done done) override {
    if (bytes == sizeof(OpHeader)) headers[peer] = {static_cast<OpHeader*>(data), std::move(done)};
  }
  void hold(const std::vector<int>& peers) override { held.insert(peers.begin(), peers.end()); }
  void release(int peer) override { held.erase(peer); }
  void progress(const Op&) override {}
  void wait(const Op&) override {}
  bool idle() const override { return true; }

  void hear(int peer, const OpHeader& header) {
    *headers[peer].first = header;
    headers[peer].second();
  }

  std::map<int, std::pair<OpHeader*, Done>> headers;
  std::set<int> held;
};

struct Started {
  explicit Started(std::vector<int> members) : tier(wire, std::move(members), 0, NetSettings{}) {}
  Recorder wire;
  NetTier tier;
  Op op{OpHeader{}, Deadline(kTimeout)};
  std::vector<float> in = std::vector<float>(1000);
  std::vector<float> out = std::vector<float>(9000);
  std::vector<std::size_t> arrived;
};

TEST(Hold, ThoseWhoseHeadersHaveNotComeAreOnHold) {
  Started gather({3, 5, 7});
  std::vector<MutableBlock> blocks;
  for (std::size_t r = 0; r < 3; ++r) blocks.push_back({gather.out.data() + 1000 * r, 4000});
  gather.tier.start_all_gather(gather.op, gather.in.data(), blocks, gather.arrived);
  EXPECT_EQ(gather.wire.held, (std::set<int>{3, 5, 7}));
  gather.wire.hear(7, gather.op.header);
  EXPECT_EQ(gather.wire.held, (std::set<int>{3, 5}));
  OpHeader other = gather.op.header;
  other.bytes += 4;
  EXPECT_THROW(gather.wire.hear(5, other), MismatchError);
  EXPECT_EQ(gather.wire.held, (std::set<int>{3, 5})) << "it will not take them";
}

TEST(Hold, SumsToo) {
  Started sum({0, 1, 2});
  sum.tier.start_reduction(sum.op, {ReduceOp::sum, DType::f32, DType::f32, 1}, 1000);
  EXPECT_EQ(sum.wire.held, (std::set<int>{0, 1, 2}));
}

TEST(Hold, NeitherOneOfTwoNorABroadcastsPeers) {
  Started pair({0, 1});
  pair.tier.start_reduction(pair.op, {ReduceOp::sum, DType::f32, DType::f32, 1}, 1000);
  EXPECT_TRUE(pair.wire.held.empty());
  Started broadcast({0, 1, 2});
  std::size_t arrived = 0;
  broadcast.tier.start_broadcast(broadcast.op, broadcast.in.data(), 4000, 0, arrived);
  EXPECT_TRUE(broadcast.wire.held.empty());
}

TEST(Hold, ChecksumsPassItOn) {
  auto recorder = std::make_unique<Recorder>();
  const Recorder& inner = *recorder;
  ChecksumWire wire(std::move(recorder));
  wire.hold({1, 2});
  wire.release(2);
  EXPECT_EQ(inner.held, (std::set<int>{1}));
}

}  // namespace
}  // namespace smddp::testing
