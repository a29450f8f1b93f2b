// Sets of cores in the notation of taskset: `0-3,8`.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace smddp {

/// The cores that `text` names, in its order; nothing if it is not such a list. Numbers are below 65536.
std::optional<std::vector<int>> cpus_from(const std::string& text);

}  // namespace smddp
