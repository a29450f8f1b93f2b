#include "transport/handshake.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

constexpr std::uint32_t kHelloMagic = 0x50444D53;  // "SMDP"

void fill_random(void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::getrandom(at, bytes, 0);
    if (n < 0 && errno != EINTR) throw_system("getrandom", errno);
    if (n <= 0) continue;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// Both sides' proofs are over the same bytes, apart from who speaks.
Digest proof_of(const std::string& key, const char* speaker, const Hello& hello, const Challenge& challenge) {
  std::string message = std::string("smddp ") + speaker;
  message.append(reinterpret_cast<const char*>(&hello), sizeof(hello));
  message.append(challenge.begin(), challenge.end());
  return hmac_sha256(key, message);
}

}  // namespace

Nonce make_nonce() {
  static const char digits[] = "0123456789abcdef";
  Nonce nonce;
  fill_random(nonce.data(), nonce.size());
  for (char& c : nonce) c = digits[static_cast<unsigned char>(c) % 16];
  return nonce;
}

std::string handshake_key(const std::string& secret, const Nonce& nonce) {
  const Digest key = hmac_sha256(secret, "smddp key " + std::string(nonce.begin(), nonce.end()));
  return {key.begin(), key.end()};
}

Caller::Caller(std::string key, int from, int to, int channel) : key_(std::move(key)) {
  hello_.magic = kHelloMagic;
  hello_.protocol = kProtocol;
  hello_.from = from;
  hello_.to = to;
  hello_.channel = channel;
  fill_random(hello_.challenge.data(), hello_.challenge.size());
}

std::optional<Digest> Caller::answer(const Reply& reply) const {
  if (reply.magic != kHelloMagic || reply.protocol != kProtocol) return std::nullopt;
  if (!same_digest(reply.proof, proof_of(key_, "listener", hello_, reply.challenge))) return std::nullopt;
  return proof_of(key_, "caller", hello_, reply.challenge);
}

bool Caller::accepted(const Ack& ack) { return ack.magic == kHelloMagic; }

std::optional<Reply> Listener::greet(const Hello& hello) {
  if (hello.magic != kHelloMagic || hello.protocol != kProtocol || hello.to != rank_) return std::nullopt;
  hello_ = hello;
  fill_random(challenge_.data(), challenge_.size());
  Reply reply;
  reply.magic = kHelloMagic;
  reply.protocol = kProtocol;
  reply.challenge = challenge_;
  reply.proof = proof_of(key_, "listener", hello_, challenge_);
  return reply;
}

bool Listener::believes(const Digest& proof) const {
  return same_digest(proof, proof_of(key_, "caller", hello_, challenge_));
}

Ack Listener::ack() { return {kHelloMagic}; }

}  // namespace smddp
