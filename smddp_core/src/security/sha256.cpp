#include "security/sha256.hpp"

#include <cstring>

namespace smddp {
namespace {

constexpr std::size_t kBlock = 64;

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

std::uint32_t rotated(std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

std::array<std::uint32_t, 64> schedule(const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | std::uint32_t{block[4 * i + 3]};
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t b = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  return w;
}

// FIPS 180-4, section 6.2.2. s[0] is its a, s[4] its e.
void compress(State& state, const std::uint8_t* block) {
  const std::array<std::uint32_t, 64> w = schedule(block);
  State s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t sum1 = rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25);
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t t1 = s[7] + sum1 + choice + kRounds[i] + w[i];
    const std::uint32_t sum0 = rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {t1 + sum0 + majority, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

Digest sha256(const void* data, std::size_t bytes) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, at += kBlock) compress(state, at);
  // The rest, a one bit, zeros, and the length in bits: one block or two.
  std::uint8_t tail[2 * kBlock] = {};
  if (left > 0) std::memcpy(tail, at, left);
  tail[left] = 0x80;
  const std::size_t size = left + 9 <= kBlock ? kBlock : 2 * kBlock;
  for (std::size_t i = 0; i < 8; ++i)
    tail[size - 1 - i] = static_cast<std::uint8_t>(std::uint64_t{bytes} * 8 >> (8 * i));
  for (std::size_t done = 0; done < size; done += kBlock) compress(state, tail + done);
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(const std::string& key, const std::string& message) {
  std::string padded = key;
  if (padded.size() > kBlock) {
    const Digest digest = sha256(padded.data(), padded.size());
    padded.assign(digest.begin(), digest.end());
  }
  padded.resize(kBlock, '\0');
  std::string inner = padded;
  std::string outer = padded;
  for (std::size_t i = 0; i < kBlock; ++i) {
    inner[i] = static_cast<char>(inner[i] ^ 0x36);
    outer[i] = static_cast<char>(outer[i] ^ 0x5c);
  }
  inner += message;
  const Digest digest = sha256(inner.data(), inner.size());
  outer.append(digest.begin(), digest.end());
  return sha256(outer.data(), outer.size());
}

bool same_digest(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace smddp
