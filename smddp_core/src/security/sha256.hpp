// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for proofs that a peer belongs to the job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace smddp {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(const void* data, std::size_t bytes);

Digest hmac_sha256(const std::string& key, const std::string& message);

/// Takes the same time wherever the first difference is.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace smddp
