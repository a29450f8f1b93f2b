// CRC32C (Castagnoli; RFC 3720, appendix B.4): finds flipped bits in what travels between hosts. No protection against
// somebody who flips them on purpose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smddp {

/// Continues from `crc`, which is 0 at the start. Uses the processor's instruction where there is one.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

/// The same by table, for processors without it and for the test that compares both.
std::uint32_t crc32c_by_table(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace smddp
