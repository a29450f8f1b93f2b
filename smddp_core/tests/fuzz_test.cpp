// Everything that is read from a socket or the store, fed with mutations of valid input. Deterministic; a few seconds
// under ASan. SMDDP_FUZZ_ROUNDS (20,000) makes it longer. The only allowed outcomes: a value, or an Error.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "op.hpp"
#include "smddp/env.hpp"
#include "smddp/errors.hpp"
#include "table.hpp"
#include "transport/handshake.hpp"
#include "transport/notice.hpp"

namespace smddp {
namespace {

using Random = std::mt19937_64;

std::size_t rounds() {
  const char* text = std::getenv("SMDDP_FUZZ_ROUNDS");
  return text ? std::strtoul(text, nullptr, 10) : 20000;
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// One to four of: a flipped bit, an extreme byte, a cut, a repetition, an insertion, a splice with another seed.
std::string mutated(const std::vector<std::string>& corpus, Random& random) {
  std::string text = corpus[random() % corpus.size()];
  for (std::size_t n = 1 + random() % 4; n > 0; --n) {
    const std::size_t at = text.empty() ? 0 : random() % text.size();
    static const char extremes[] = {'\0', '\x7f', '\x80', '\xff', '\n', ' ', '-', '='};
    switch (random() % 6) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ 1 << random() % 8);
        break;
      case 1:
        if (!text.empty()) text[at] = extremes[random() % sizeof(extremes)];
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text += text.substr(at);
        break;
      case 4:
        text.insert(at, std::string(random() % 40, extremes[random() % sizeof(extremes)]));
        break;
      default:
        text = text.substr(0, at) + corpus[random() % corpus.size()].substr(0, random() % 200);
    }
    if (text.size() > 8192) text.resize(8192);
  }
  return text;
}

// Runs `read` over the corpus itself, which must be accepted, and over mutations of it.
void fuzz(const std::vector<std::string>& corpus, const std::function<void(const std::string&)>& read) {
  for (const std::string& text : corpus) EXPECT_NO_THROW(read(text));
  Random random(4711);
  std::size_t refused = 0;
  for (std::size_t round = 0; round < rounds(); ++round) {
    const std::string text = mutated(corpus, random);
    try {
      read(text);
    } catch (const Error&) {
      ++refused;
    }
  }
  ::testing::Test::RecordProperty("refused", static_cast<int>(refused));
}

TEST(Fuzz, Table) {
  Table table{wire_version(), make_nonce(), Env().shared(), {}};
  std::vector<std::string> corpus;
  for (int ranks = 0; ranks < 3; ++ranks) {
    corpus.push_back(to_text(table));
    table.ranks.push_back({"boot-1", "10.0.0.1", 4711, "node-a", wire_version()});
  }
  fuzz(corpus, [](const std::string& text) {
    const Table read = table_from(text);
    Env env;
    env.adopt(read.settings, read.version);
    ASSERT_LE(read.ranks.size(), text.size());
  });
}

TEST(Fuzz, RankInfo) {
  fuzz({to_text(RankInfo{"boot-1", "10.0.0.1", 4711, "node-a", "0.1.0"}),
        to_text(RankInfo{"x", "fe80::1", 65535, "b", "1.2.3"})},
       [](const std::string& text) {
         const RankInfo info = rank_info_from(text);
         ASSERT_GE(info.port, 0);
         ASSERT_LE(info.port, 65535);
       });
}

TEST(Fuzz, Settings) {
  fuzz({to_text(Env().shared()), "SMDDP_TRANSPORT=tcp\n", ""}, [](const std::string& text) {
    Env env;
    env.adopt(settings_from(text), "9.9.9");
  });
}

// In pieces of any size, as a socket delivers them: the same notices, or the same refusal.
TEST(Fuzz, Notices) {
  Notice failure;
  failure.kind = ErrorKind::peer;
  failure.text = "reported by rank 3: all_reduce #12: rank 1 closed its connection";
  Notice query;
  query.type = Notice::Type::query;
  Notice answer;
  answer.type = Notice::Type::answer;
  answer.awaited = {77, {1, 2, 3}};
  Notice message;
  message.type = Notice::Type::message;
  message.route = {1, 2, 3, 1, 4, 5};
  message.text = "Float";
  Random cuts(1);
  fuzz({to_bytes(failure), to_bytes(query) + to_bytes(answer), to_bytes(answer) + to_bytes(failure), to_bytes(message)},
       [&](const std::string& bytes) {
         NoticeReader reader;
         std::size_t at = 0;
         while (at < bytes.size()) {
           const std::size_t n = std::min<std::size_t>(1 + cuts() % 64, bytes.size() - at);
           reader.feed(bytes.data() + at, n);
           at += n;
           while (const auto notice = reader.next()) {
             ASSERT_LE(notice->text.size(), kMostNoticeBytes);
             // What travels as a number must be safe to use as one.
             try {
               throw_error(notice->kind, notice->text);
             } catch (const Error& error) {
               ASSERT_EQ(std::string(error.what()).rfind("smddp: ", 0), 0U);
             }
           }
         }
       });
}

TEST(Fuzz, Handshake) {
  const std::string key = handshake_key("secret", make_nonce());
  const Caller caller(key, 1, 0, 0);
  Random random(3);
  Listener listener(key, 0);
  const auto reply = listener.greet(caller.hello());
  ASSERT_TRUE(reply);
  const auto proof = caller.answer(*reply);
  ASSERT_TRUE(proof);
  const std::vector<std::string> corpus{bytes_of(caller.hello()), bytes_of(*reply), bytes_of(*proof)};
  fuzz(corpus, [&](const std::string& bytes) {
    Hello hello;
    Reply answer;
    Digest guess{};
    std::memcpy(static_cast<void*>(&hello), bytes.data(), std::min(bytes.size(), sizeof(hello)));
    std::memcpy(static_cast<void*>(&answer), bytes.data(), std::min(bytes.size(), sizeof(answer)));
    std::memcpy(guess.data(), bytes.data(), std::min(bytes.size(), guess.size()));
    Listener fresh(key, 0);
    // A greeting may be anybody's; a proof may not.
    if (fresh.greet(hello)) {
      ASSERT_FALSE(fresh.believes(guess));
    }
    if (bytes != corpus[1]) {
      const bool same = std::memcmp(&answer, &*reply, sizeof(answer)) == 0;
      ASSERT_EQ(caller.answer(answer).has_value(), same);
    }
  });
}

// A header of a peer is compared as bytes and printed when it differs.
TEST(Fuzz, OperationHeaders) {
  OpHeader mine;
  mine.kind = OpKind::all_reduce;
  mine.sequence = 5;
  mine.bytes = 4096;
  mine.dtype = DType::f32;
  mine.reduce = ReduceOp::sum;
  const Op op{mine, Deadline(std::chrono::seconds(1))};
  fuzz({bytes_of(mine)}, [&](const std::string& bytes) {
    OpHeader theirs = mine;
    std::memcpy(static_cast<void*>(&theirs), bytes.data(), std::min(bytes.size(), sizeof(theirs)));
    check_same(op, 0, theirs, 1);
    ASSERT_EQ(std::memcmp(&theirs, &mine, sizeof(mine)), 0) << "a different header passed";
  });
}

}  // namespace
}  // namespace smddp
