// Who may join: proofs, strangers, replays, secrets that differ. And SHA-256 against its published vectors.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstring>
#include <random>

#include "ranks.hpp"
#include "rendezvous.hpp"
#include "security/sha256.hpp"
#include "transport/connect.hpp"

namespace smddp::testing {
namespace {

std::string hex(const Digest& digest) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) text += {digits[byte / 16], digits[byte % 16]};
  return text;
}

std::string sha256_of(const std::string& text) { return hex(sha256(text.data(), text.size())); }

// FIPS 180-2, appendix B.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 1, 2 and 6.
TEST(Sha256, PublishedHmacVectors) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Handshake, BothSidesProveTheKey) {
  const std::string key = handshake_key("secret", make_nonce());
  const Caller caller(key, 3, 1, 0);
  Listener listener(key, 1);
  const auto reply = listener.greet(caller.hello());
  ASSERT_TRUE(reply);
  const auto proof = caller.answer(*reply);
  ASSERT_TRUE(proof);
  EXPECT_TRUE(listener.believes(*proof));
  EXPECT_TRUE(Caller::accepted(Listener::ack()));
}

TEST(Handshake, RefusesWhoDoesNotKnowTheKey) {
  const Nonce nonce = make_nonce();
  const Caller caller(handshake_key("guess", nonce), 3, 1, 0);
  Listener listener(handshake_key("secret", nonce), 1);
  const auto reply = listener.greet(caller.hello());
  ASSERT_TRUE(reply);
  EXPECT_FALSE(caller.answer(*reply)) << "the caller sees that this is not its job";
  EXPECT_FALSE(listener.believes(Digest{}));
  EXPECT_FALSE(listener.believes(reply->proof)) << "the listener's own proof sent back";
}

TEST(Handshake, RefusesWhatWasHeardBefore) {
  const std::string key = handshake_key("", make_nonce());
  const Caller caller(key, 3, 1, 0);
  Listener first(key, 1);
  const auto proof = caller.answer(*first.greet(caller.hello()));
  ASSERT_TRUE(proof && first.believes(*proof));
  Listener second(key, 1);
  ASSERT_TRUE(second.greet(caller.hello()));
  EXPECT_FALSE(second.believes(*proof));
}

TEST(Handshake, RefusesOtherAddressees) {
  const std::string key = handshake_key("", make_nonce());
  EXPECT_FALSE(Listener(key, 2).greet(Caller(key, 3, 1, 0).hello()));
}

// A connection to a listener, by somebody who is not of the job.
class Stranger {
 public:
  Stranger(const std::string& address, int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, address.c_str(), &there.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0;
  }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  ~Stranger() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool connected() const { return connected_; }
  void say(const std::string& text) const { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }

 private:
  int fd_;
  bool connected_ = false;
};

// Rank 0's listener is known before the others call; a store that waits gives strangers the first word.
class SlowStore final : public Store {
 public:
  explicit SlowStore(std::function<void(const RankInfo&)> on_root) : on_root_(std::move(on_root)) {}
  void set(const std::string& key, const std::string& value) override {
    if (key == "rank/0") on_root_(rank_info_from(value));
    store_.set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_.get(key, timeout);
  }

 private:
  MemoryStore store_;
  std::function<void(const RankInfo&)> on_root_;
};

void meet_with_strangers(const std::vector<std::string>& speeches) {
  std::vector<Stranger> strangers;
  SlowStore store([&](const RankInfo& info) {
    for (const std::string& speech : speeches) {
      strangers.emplace_back(info.address, info.port);
      ASSERT_TRUE(strangers.back().connected());
      strangers.back().say(speech);
    }
  });
  // Strangers must hold nobody up: were each of them waited for, the group would miss its deadline.
  run_threads(3, [&](int rank) {
    Communicator group(store, options_for({"a", "b", "b"}, rank));
    group.barrier(kTimeout);
  });
}

TEST(Strangers, GarbageIsDropped) {
  std::minstd_rand random(1);
  std::vector<std::string> speeches{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", std::string(5000, '\0')};
  for (int i = 0; i < 20; ++i) {
    std::string noise;
    for (unsigned n = 0; n < 10 * static_cast<unsigned>(i); ++n) noise += static_cast<char>(random());
    speeches.push_back(noise);
  }
  meet_with_strangers(speeches);
}

TEST(Strangers, SilenceHoldsNobodyUp) { meet_with_strangers(std::vector<std::string>(300, "")); }

TEST(Strangers, HalfAGreetingHoldsNobodyUp) {
  const Hello hello = Caller("", 1, 0, 0).hello();
  meet_with_strangers(
      std::vector<std::string>(50, std::string(reinterpret_cast<const char*>(&hello), sizeof(hello) - 1)));
}

TEST(Strangers, AnImpostorIsNoRank) {
  const Hello hello = Caller("guess", 1, 0, 0).hello();
  meet_with_strangers({std::string(reinterpret_cast<const char*>(&hello), sizeof(hello)) + std::string(32, 'x')});
}

TEST(Secret, RanksWithAnotherOneAreRefused) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    CommunicatorOptions options = options_for({"a", "b"}, rank);
    options.env.job_secret = rank == 0 ? "one" : "two";
    const std::string text = message_of<PeerError>([&] { Communicator group(store, options); });
    EXPECT_EQ(text.find("rank 1 did not join: rank 0 on") != std::string::npos, rank == 0) << text;
    EXPECT_NE(text.find("SMDDP_JOB_SECRET"), std::string::npos) << text;
  });
}

// As one whose secret cannot be read: nobody talks to it.
TEST(Secret, AllHearWhyARankHasNone) {
  for (const int without : {0, 1, 2}) {
    MemoryStore store;
    run_threads(3, [&](int rank) {
      CommunicatorOptions options = options_for({"a", "b", "b"}, rank);
      if (rank == without)
        options.refusal = "no secret";
      else
        options.env.job_secret = "one";
      const std::string text = message_of<Error>([&] { Communicator group(store, options); });
      const std::string why = without == 0 && rank != 0 ? "does not know this job's secret" : "no secret";
      EXPECT_NE(text.find(why), std::string::npos) << text;
      const bool left_out = without != 0 && rank != without;
      EXPECT_EQ(text.find("rank " + std::to_string(without) + " did not join") != std::string::npos, left_out) << text;
    });
  }
}

// The word of an earlier group, taken back, is nobody's who waits.
TEST(Excuse, FindsARank0ThatComesLater) {
  MemoryStore store;
  Rendezvous(store, "default", {}, kTimeout).close();
  run_threads(2, [&](int rank) {
    Rendezvous place(store, "default", {}, kTimeout);
    if (rank == 1) return place.excuse(1, "no socket", kTimeout);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    place.open("word");
    std::string text;
    for (const Deadline until(kTimeout); text.empty() && !until.passed();)
      text = message_of<PeerError>([&] { place.check_excuses("word"); });
    EXPECT_EQ(text, "smddp: group default: rank 1 did not join: no socket");
    place.check_excuses("the next one's word");
  });
}

TEST(Refusal, EndsTheWaitOfTheOthersUnlessANewRank0Speaks) {
  MemoryStore store;
  Rendezvous(store, "default", {}, kTimeout).refuse("smddp: no interface");
  run_threads(2, [&](int rank) {
    Rendezvous place(store, "default", {}, kTimeout);
    if (rank == 1) {
      EXPECT_EQ(place.root(), "word");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    place.open("word");
  });
  Rendezvous place(store, "default", {}, kTimeout);
  place.refuse("smddp: no interface");
  EXPECT_EQ(message_of<PeerError>([&] { place.root(); }), "smddp: group default: rank 0 did not join: no interface");
}

/// A store that has stopped answering, as a keeper that is stopped looks to its clients.
class SilentStore final : public Store {
 public:
  void set(const std::string&, const std::string&) override { throw TimeoutError("no answer"); }
  std::string get(const std::string&, std::chrono::milliseconds) override { throw TimeoutError("no answer"); }
  bool silent() const override { return true; }
};

TEST(SilentStore, IsBlamedItselfAtTheDeadline) {
  SilentStore store;
  const std::string why =
      "smddp: group default: the store, which rank 0 or the launcher keeps, does not answer; waited 0.2 s";
  const auto place = [&] { return Rendezvous(store, "default", {}, std::chrono::milliseconds(200)); };
  EXPECT_EQ(message_of<TimeoutError>([&] { place().root(); }), why);
  EXPECT_EQ(message_of<TimeoutError>([&] { place().set("key", "value"); }), why);
  EXPECT_EQ(message_of<TimeoutError>([&] { place().get("key", 1); }), why);
  place().refuse("reason");
  place().excuse(1, "reason", std::chrono::milliseconds(50));
}

/// Keeps smddp.h's word to stores that cannot have any text as a key.
class PlainKeys final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override { under_.set(plain(key), value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return under_.get(plain(key), timeout);
  }

 private:
  static const std::string& plain(const std::string& key) {
    for (const char c : key) EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == '/') << key;
    return key;
  }

  MemoryStore under_;
};

TEST(Store, KeysHoldLettersDigitsAndSlashes) {
  PlainKeys store;
  const Hosts hosts{"a", "a", "b", "b"};
  run_threads(4, [&](int rank) { Communicator(store, options_for(hosts, rank)).barrier(kTimeout); });
  run_threads(4, [&](int rank) {
    CommunicatorOptions options = options_for(hosts, rank);
    if (rank == 3) options.refusal = "SMDDP_ONE_SHOT_BYTES=foo: no";
    EXPECT_NE(message_of<Error>([&] { Communicator(store, options).barrier(kTimeout); }), "");
  });
  const std::string word = "9f86d081 10.0.0.1 29500 node-a.example 0.1.0/3";
  Rendezvous place(store, "default", {}, kTimeout);
  place.open(word);
  place.excuse(1, "no socket", kTimeout);
  EXPECT_NE(message_of<PeerError>([&] { place.check_excuses(word); }), "");
}

TEST(Secret, RanksWithTheSameOneMeet) {
  run_ranks(
      {"a", "a", "b", "b"}, [](Communicator& group, int) { group.barrier(kTimeout); },
      [](CommunicatorOptions& options) { options.env.job_secret = "one"; });
}

}  // namespace
}  // namespace smddp::testing
