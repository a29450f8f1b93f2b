// Operations of all ranks that another library carries out for the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smddp/types.hpp"

namespace smddp {

/// What a rank says of such a call before it makes it.
struct DelegatedCall {
  OpKind kind = OpKind::all_reduce;
  std::string text;  ///< "gather (Float, 40 bytes, to rank 0)": must be the same on all ranks.
  /// Of an all_to_all: bytes for each rank, and room for what comes from each.
  std::vector<std::uint64_t> gives;
  std::vector<std::uint64_t> takes;
};

/// Bytes of a call's cell in a group of `ranks` ranks: every rank fills one, and gets those of all.
std::size_t cell_bytes(OpKind kind, int ranks);

/// @param cell cell_bytes() bytes. Of a text that is too long for it, the end is a checksum of all of it.
void write_cell(const DelegatedCall& call, int ranks, std::byte* cell);

/// @param cells one of each rank, in rank order, of calls of one kind. The same on all ranks: so is what this finds.
/// @param job_ranks for the message: see rank_name().
/// @throws MismatchError naming two ranks and their calls that do not belong together, or what one gives and the other
/// takes.
void compare_cells(OpKind kind, const std::byte* cells, int ranks, const std::vector<int>& job_ranks);

}  // namespace smddp
