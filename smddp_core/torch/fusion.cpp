#include "fusion.hpp"

#include <map>

namespace smddp::torch_binding {

std::vector<std::vector<std::size_t>> fusion_groups(TensorList tensors) {
  struct Open {
    std::size_t group;
    std::size_t bytes;
  };
  std::vector<std::vector<std::size_t>> groups;
  std::map<at::ScalarType, Open> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t bytes = tensors[i].nbytes();
    const bool small = bytes <= kLargestFused && tensors[i].device().is_cpu();
    const auto found = open.find(tensors[i].scalar_type());
    if (small && found != open.end() && found->second.bytes + bytes <= kFusionBuffer) {
      groups[found->second.group].push_back(i);
      found->second.bytes += bytes;
      continue;
    }
    if (small) open[tensors[i].scalar_type()] = {groups.size(), bytes};
    groups.push_back({i});
  }
  return groups;
}

}  // namespace smddp::torch_binding
