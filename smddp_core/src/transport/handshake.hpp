// What two ranks say to each other on a new connection, so that each is sure that the other is of the job and which
// rank it is. Messages only, no sockets.
//
//   caller  -> listener   Hello     who calls whom on which channel, and a challenge
//   listener -> caller    Reply     its own challenge, and the proof that it knows the key
//   caller  -> listener   Proof     the same proof for the caller
//   listener -> caller    Ack       welcome
//
// A proof is an HMAC over both challenges and the Hello, so that what was heard on one connection is of no use on
// another. The key is made of the group's nonce, which travels through the store, and of the job's secret, which does
// not: with a secret, somebody who can read the store still cannot join.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "security/sha256.hpp"

namespace smddp {

/// Changes when the bytes between ranks change, so that mixed builds are refused and not misread.
constexpr std::uint32_t kProtocol = 5;

/// Random text that only the ranks of one group know (through the store): strangers and ranks of an earlier run are
/// turned away.
using Nonce = std::array<char, 16>;
Nonce make_nonce();

/// What both ends of a connection must know. @param secret may be empty.
std::string handshake_key(const std::string& secret, const Nonce& nonce);

using Challenge = std::array<std::uint8_t, 32>;

struct Hello {
  std::uint32_t magic = 0;
  std::uint32_t protocol = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t channel = 0;
  std::int32_t reserved = 0;
  Challenge challenge{};
};
static_assert(sizeof(Hello) == 56, "Hello travels as plain bytes");

struct Reply {
  std::uint32_t magic = 0;
  std::uint32_t protocol = 0;
  Challenge challenge{};
  Digest proof{};
};
static_assert(sizeof(Reply) == 72, "Reply travels as plain bytes");

struct Ack {
  std::uint32_t magic = 0;
};

/// The caller's side.
class Caller {
 public:
  Caller(std::string key, int from, int to, int channel);

  const Hello& hello() const { return hello_; }

  /// The proof to send, or nothing when whoever answered does not know the key.
  std::optional<Digest> answer(const Reply& reply) const;

  static bool accepted(const Ack& ack);

 private:
  std::string key_;
  Hello hello_;
};

/// The listener's side.
class Listener {
 public:
  Listener(std::string key, int rank) : key_(std::move(key)), rank_(rank) {}

  /// What to send back, or nothing when this is no greeting for this rank.
  std::optional<Reply> greet(const Hello& hello);

  /// Whether `proof` answers the last reply.
  bool believes(const Digest& proof) const;

  const Hello& hello() const { return hello_; }
  static Ack ack();

 private:
  std::string key_;
  int rank_;
  Hello hello_;
  Challenge challenge_{};
};

}  // namespace smddp
