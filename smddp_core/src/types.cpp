#include "smddp/types.hpp"

#include <cstring>
#include <sstream>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

// Linux gives a process less than 2^47 bytes on x86-64 unless it asks for more. On arm64 it is 2^48, and no machine of
// either kind has as much memory: a larger number is a slip (a negative one, a pointer), never a buffer.
constexpr std::size_t kAddressSpace = (std::size_t{1} << 47) - 1;

}  // namespace

std::size_t size_of(DType type) {
  switch (type) {
    case DType::c128:
    case DType::i128:
      return 16;
    case DType::f64:
    case DType::i64:
    case DType::c64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::u8:
    case DType::i8:
    case DType::bytes:
      return 1;
  }
  return 1;
}

DType accumulator_of(DType type, ReduceOp op) {
  switch (type) {
    case DType::f16:
    case DType::bf16:
      return DType::f32;
    case DType::u8:
    case DType::i8:
    case DType::i16:
    case DType::i32:
      return op == ReduceOp::avg ? DType::i64 : type;
    case DType::i64:
      return op == ReduceOp::avg ? DType::i128 : type;
    default:
      return type;
  }
}

DType component_of(DType type) {
  if (type == DType::c64) return DType::f32;
  return type == DType::c128 ? DType::f64 : type;
}

bool can_reduce(DType type, ReduceOp op) {
  if (op == ReduceOp::none || type == DType::bytes || type == DType::i128) return false;
  if (component_of(type) != type) return op == ReduceOp::sum || op == ReduceOp::avg;
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  const bool real = type == DType::f32 || type == DType::f64 || type == DType::f16 || type == DType::bf16;
  return !(bitwise && real);
}

const char* name_of(DType type) {
  static const char* const names[] = {"float32", "float64", "float16", "bfloat16",  "uint8",      "int8",  "int16",
                                      "int32",   "int64",   "bytes",   "complex64", "complex128", "int128"};
  const auto index = static_cast<std::size_t>(type);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown type";
}

const char* name_of(ReduceOp op) {
  static const char* const names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "none"};
  const auto index = static_cast<std::size_t>(op);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown reduction";
}

const char* name_of(OpKind kind) {
  static const char* const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter",
                                      "reduce",  "gather",    "scatter",    "all_to_all"};
  const auto index = static_cast<std::size_t>(kind);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown operation";
}

bool operator==(const OpHeader& a, const OpHeader& b) { return std::memcmp(&a, &b, sizeof(OpHeader)) == 0; }

std::string describe(const OpHeader& header) {
  std::ostringstream text;
  text << name_of(header.kind) << " #" << header.sequence;
  if (header.delegated) text << " (carried out by another back end)";
  if (header.delegated || header.kind == OpKind::barrier) return text.str();
  text << " (";
  if (header.reduce != ReduceOp::none) text << name_of(header.reduce) << ", ";
  if (header.dtype != DType::bytes) text << name_of(header.dtype) << ", ";
  // What an all-reduce is beside its type: of complex numbers, of several tensors of certain sizes, ...
  const bool sums = header.kind == OpKind::all_reduce;
  if (header.tag != 0) text << (sums ? "form code " : "type code ") << header.tag << ", ";
  if (header.root >= 0) text << (sums ? "to rank " : "from rank ") << header.root << ", ";
  text << header.bytes << " bytes)";
  return text.str();
}

std::size_t bytes_of(std::size_t count, std::size_t each, int ranks, const char* operation) {
  if (count > kAddressSpace / each / static_cast<std::size_t>(ranks))
    throw UsageError(std::string(operation) + " of " + std::to_string(count) + " elements of " + std::to_string(each) +
                     (each == 1 ? " byte" : " bytes") + ": more than an address space holds");
  return count * each;
}

Part part_of(std::size_t count, int parts, int index) {
  constexpr std::size_t unit = kPartUnit;
  const std::size_t units = (count + unit - 1) / unit;
  const auto n = static_cast<std::size_t>(parts);
  const auto i = static_cast<std::size_t>(index);
  const auto edge = [&](std::size_t k) {
    const std::size_t at = (units / n * k + (k < units % n ? k : units % n)) * unit;
    return at < count ? at : count;
  };
  return {edge(i), edge(i + 1) - edge(i)};
}

}  // namespace smddp
