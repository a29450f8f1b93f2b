// The words every layer shares: element types, reductions, the header that names an operation.
// Not for anything that knows about transports or torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smddp {

/// Element type of a buffer. `bytes` is for operations that only move data: one element is one byte. `c64` and `c128`
/// are pairs of f32 and f64. `i128` is not for callers: it holds sums of i64 until they are divided.
enum class DType : std::uint8_t { f32, f64, f16, bf16, u8, i8, i16, i32, i64, bytes, c64, c128, i128 };

/// How elements of several ranks become one. `none` for operations that only move data.
/// `avg` is the sum divided by the number of ranks (integers: the exact sum, truncated towards zero).
/// Integer sums and products wrap modulo 2^bits, as torch's do. `min` and `max` of floats give NaN where any rank has
/// one, as torch's do. `band`, `bor` and `bxor` are bitwise, for integers; complex types have `sum` and `avg` only.
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, none };

/// What is asked of the group. The first kOpKinds are the library's own; the others have only names here.
enum class OpKind : std::uint8_t {
  barrier,
  broadcast,
  all_reduce,
  all_gather,
  reduce_scatter,
  reduce,
  gather,
  scatter,
  all_to_all
};
constexpr std::size_t kOpKinds = 5;

/// Size of one element, in bytes.
std::size_t size_of(DType type);

/// The type partial results are held in: f32 for f16 and bf16 (rounded once, at the end), a wider integer for averages
/// of integers (the sum must not wrap before it is divided), `type` itself otherwise.
DType accumulator_of(DType type, ReduceOp op);

/// f32 for c64, f64 for c128, `type` itself otherwise.
DType component_of(DType type);

/// Whether the library has this reduction for elements of this type.
bool can_reduce(DType type, ReduceOp op);

const char* name_of(DType type);
const char* name_of(ReduceOp op);
const char* name_of(OpKind kind);

/// Identifies an operation. Every rank sends its own with the first bytes of each operation, and a rank that finds
/// another header than its own raises a MismatchError instead of summing what does not belong together.
struct OpHeader {
  std::uint64_t sequence = 0;  ///< Number of the operation in its group, from 1.
  std::uint64_t bytes = 0;     ///< Size of the whole message on one rank (all-gather: of one rank's part).
  std::int32_t root = -1;      ///< Source rank of a broadcast, -1 otherwise.
  std::uint32_t tag = 0;       ///< The caller's own type code; compared, never interpreted.
  OpKind kind = OpKind::barrier;
  DType dtype = DType::bytes;
  ReduceOp reduce = ReduceOp::none;
  std::uint8_t plan = 0;                 ///< Between hosts: how a later operation is to go, see NetTier. 0: not said.
  std::uint8_t delegated = 0;            ///< 1: of an operation that another library carries out.
  std::uint8_t reserved[3] = {0, 0, 0};  ///< Keeps the struct free of padding: it is compared and sent as bytes.
};
static_assert(sizeof(OpHeader) == 32, "OpHeader travels between processes as 32 plain bytes");

bool operator==(const OpHeader& a, const OpHeader& b);
inline bool operator!=(const OpHeader& a, const OpHeader& b) { return !(a == b); }

/// "all_reduce #12 (sum, float32, 4096 bytes)", for error messages.
std::string describe(const OpHeader& header);

/// Bytes of `count` elements of `each` bytes, of which every one of `ranks` ranks has so many in a buffer.
/// @throws UsageError when no address space holds all of them (2^47 bytes and more): a product that wraps round would
/// be a small message, and a number that is no size would be read and sent until something breaks.
std::size_t bytes_of(std::size_t count, std::size_t each, int ranks, const char* operation);

/// Input of a reduction: `count` elements that are meant for one rank.
struct Block {
  const void* data = nullptr;
  std::size_t count = 0;
};

/// Part of a result that is filled in by one rank.
struct MutableBlock {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// A run of elements of a larger buffer.
struct Part {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A cache line of f32, in elements.
constexpr std::size_t kPartUnit = 16;
/// Bytes of an element of the widest types.
constexpr std::size_t kWidest = 16;

/// Cuts `count` elements into `parts` runs, equal up to one unit of kPartUnit elements (so that ranks do not write to
/// one line), the last ones possibly empty. Returns run `index`.
Part part_of(std::size_t count, int parts, int index);

}  // namespace smddp
