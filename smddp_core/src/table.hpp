// What rank 0 tells all ranks before anything is connected, as text in the store. Pure data, no effects.
#pragma once

#include <string>
#include <vector>

#include "smddp/env.hpp"
#include "smddp/topology.hpp"
#include "transport/connect.hpp"
#include "transport/handshake.hpp"

namespace smddp {

/// No job has more: a larger number is garbage, not a reason to allocate.
constexpr int kMostRanks = 1 << 20;

struct Table {
  std::string version;  ///< Of rank 0's library.
  Nonce nonce{};
  Settings settings;            ///< See Env::shared().
  std::vector<RankInfo> ranks;  ///< By rank.
};

/// Lines: `smddp-table VERSION`, the nonce, `settings N` and N of them, `ranks N` and N of them.
std::string to_text(const Table& table);

/// @throws UsageError when `text` is not a table, or naming both versions when it is another version's.
Table table_from(const std::string& text);

/// What all ranks must have in common: the release, and after a slash the form of the bytes between ranks.
std::string wire_version();

/// @throws UsageError naming both versions and `who` when `theirs` is not this library's.
void require_version(const std::string& theirs, const std::string& who);

}  // namespace smddp
