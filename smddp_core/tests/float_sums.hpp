// Sums of random floats, whose rounding shows the order.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ranks.hpp"

namespace smddp::testing {

using Floats = std::vector<float>;

inline Floats values(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  Floats data(count);
  for (float& value : data) value = normal(random);
  return data;
}

/// Every rank's result of summing values().
inline std::vector<Floats> sums(const Hosts& hosts, std::size_t count,
                                const std::function<void(CommunicatorOptions&)>& adjust) {
  std::vector<Floats> results(hosts.size());
  run_ranks(
      hosts,
      [&](Communicator& group, int rank) {
        Floats data = values(count, rank);
        group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
        results[static_cast<std::size_t>(rank)] = std::move(data);
      },
      adjust);
  return results;
}

/// What a host contributes, in the order in which it sums.
inline std::vector<Floats> contributions(const Hosts& hosts, std::size_t count) {
  std::vector<Floats> by_host;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const Floats data = values(count, static_cast<int>(r));
    std::size_t h = 0;
    while (h < names.size() && names[h] != hosts[r]) ++h;
    if (h == names.size()) {
      names.push_back(hosts[r]);
      by_host.push_back(data);
    } else {
      for (std::size_t i = 0; i < count; ++i) by_host[h][i] += data[i];
    }
  }
  return by_host;
}

}  // namespace smddp::testing
