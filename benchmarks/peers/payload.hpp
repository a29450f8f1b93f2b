// What ranks send and how they prove what they got: the same code for every library, in C++ and, through a shared
// object, in Python. Each element of each rank has a value of its own with all 24 bits of a float in use, so that a
// missing, doubled or displaced part shows; the truth is computed in double.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace payload {

/// Value of element `index` of `rank`: of either sign, its magnitude in [0.5, 1) x (rank + 1), so that none is so small
/// that it could be missing within rounding.
inline float value(int rank, std::size_t index) {
  std::uint32_t bits = static_cast<std::uint32_t>(index) * 0x9E3779B1U + static_cast<std::uint32_t>(rank) * 0x85EBCA77U;
  bits ^= bits >> 15;
  bits *= 0x2C1B3C6DU;
  bits ^= bits >> 12;
  bits *= 0x297A2D39U;
  bits ^= bits >> 15;
  const float magnitude = 0.5F + static_cast<float>(bits >> 9U) * 0x1p-24F;
  return ((bits & 1U) ? -magnitude : magnitude) * static_cast<float>(rank + 1);
}

}  // namespace payload

extern "C" {

/// Writes elements [first, first + count) of `rank` to `data`.
void payload_fill(float* data, std::size_t first, std::size_t count, int rank);

/// Compares `data` with elements [first, first + count) of the sum over `ranks` ranks.
/// An element is right when it is within ranks x roundoff x (sum of magnitudes) of the sum in double: the bound of
/// Higham, Accuracy and Stability of Numerical Algorithms, section 4.2, for any order of additions.
/// @return how many elements are wrong; NaN is.
std::size_t payload_check_sum(const float* data, std::size_t first, std::size_t count, int ranks, double roundoff);

/// Compares `data` bit by bit with elements [first, first + count) of `rank`. @return how many differ.
std::size_t payload_check_copy(const float* data, std::size_t first, std::size_t count, int rank);
}
