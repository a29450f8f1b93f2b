#include "runtime/cpu_list.hpp"

#include <charconv>
#include <sstream>

namespace smddp {
namespace {

constexpr int kMostCpus = 1 << 16;

// A whole number at the head of [begin, end); moves `begin` behind it.
std::optional<int> number(const char*& begin, const char* end) {
  int value = -1;
  const auto [next, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || value < 0 || value >= kMostCpus) return std::nullopt;
  begin = next;
  return value;
}

}  // namespace

std::optional<std::vector<int>> cpus_from(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const char* at = part.data();
    const char* const end = at + part.size();
    const auto first = number(at, end);
    auto last = first;
    if (first && at != end && *at == '-') last = number(++at, end);
    if (!last || at != end || *last < *first) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  if (cpus.empty() || text.back() == ',') return std::nullopt;
  return cpus;
}

}  // namespace smddp
