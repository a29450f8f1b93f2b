#include "payload.hpp"

void payload_fill(float* data, std::size_t first, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) data[i] = payload::value(rank, first + i);
}

std::size_t payload_check_sum(const float* data, std::size_t first, std::size_t count, int ranks, double roundoff) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0;
    double magnitude = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double term = payload::value(rank, first + i);
      sum += term;
      magnitude += std::fabs(term);
    }
    const double error = std::fabs(static_cast<double>(data[i]) - sum);
    wrong += !(error <= ranks * roundoff * magnitude);
  }
  return wrong;
}

std::size_t payload_check_copy(const float* data, std::size_t first, std::size_t count, int rank) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += !(data[i] == payload::value(rank, first + i));
  return wrong;
}
