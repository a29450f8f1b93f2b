#include "smddp/delegated_call.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"
#include "security/crc32c.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

constexpr std::size_t kTextBytes = 160;

std::size_t row_bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(std::uint64_t); }

// One that is cut still differs where the rest does.
std::string fitting(const std::string& text) {
  if (text.size() <= kTextBytes) return text;
  const std::string rest = "..., all in all " + std::to_string(crc32c(0, text.data(), text.size()));
  return text.substr(0, kTextBytes - rest.size()) + rest;
}

std::string text_of(const std::byte* cell) {
  const auto* text = reinterpret_cast<const char*>(cell);
  return std::string(text, ::strnlen(text, kTextBytes));
}

// What a rank gives to (row 0) or takes from (row 1) `other`.
std::uint64_t entry(const std::byte* cell, int ranks, int row, int other) {
  std::uint64_t value = 0;
  std::memcpy(&value, cell + kTextBytes + static_cast<std::size_t>(row * ranks + other) * sizeof(value), sizeof(value));
  return value;
}

[[noreturn]] void differ(const std::string& what, const std::string& rule, const std::vector<int>& ranks) {
  MismatchError error("ranks called different operations: " + what + "; " + rule);
  error.set_ranks(ranks);
  throw error;
}

}  // namespace

std::size_t cell_bytes(OpKind kind, int ranks) {
  return kTextBytes + (kind == OpKind::all_to_all ? 2 * row_bytes(ranks) : 0);
}

void write_cell(const DelegatedCall& call, int ranks, std::byte* cell) {
  std::memset(cell, 0, cell_bytes(call.kind, ranks));
  const std::string text = fitting(call.text);
  std::memcpy(cell, text.data(), text.size());
  if (call.kind != OpKind::all_to_all) return;
  std::byte* row = cell + kTextBytes;
  for (const auto* values : {&call.gives, &call.takes}) {
    copy_bytes(row, values->data(), std::min(values->size() * sizeof(std::uint64_t), row_bytes(ranks)));
    row += row_bytes(ranks);
  }
}

void compare_cells(OpKind kind, const std::byte* cells, int ranks, const std::vector<int>& job_ranks) {
  const auto name = [&](int rank) { return rank_name(rank, job_ranks); };
  const auto cell = [&](int rank) { return cells + static_cast<std::size_t>(rank) * cell_bytes(kind, ranks); };
  const std::string first = text_of(cell(0));
  for (int rank = 1; rank < ranks; ++rank) {
    const std::string text = text_of(cell(rank));
    if (text != first)
      differ(name(0) + " called " + first + ", " + name(rank) + " called " + text,
             "all ranks must make the same calls in the same order", {0, rank});
  }
  if (kind != OpKind::all_to_all) return;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const std::uint64_t gives = entry(cell(from), ranks, 0, to);
      const std::uint64_t takes = entry(cell(to), ranks, 1, from);
      if (gives != takes)
        differ(name(from) + " called " + first + " with " + std::to_string(gives) + " bytes for " + name(to) +
                   ", which called it with room for " + std::to_string(takes),
               "what a rank sends and what the other has room for must be the same", {from, to});
    }
}

}  // namespace smddp
