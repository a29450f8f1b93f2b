#include "smddp/types.hpp"

#include <cstring>
#include <sstream>

namespace smddp {

std::size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
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

DType accumulator_of(DType type) { return type == DType::f16 || type == DType::bf16 ? DType::f32 : type; }

const char* name_of(DType type) {
  static const char* const names[] = {"float32", "float64", "float16", "bfloat16", "uint8",
                                      "int8",    "int16",   "int32",   "int64",    "bytes"};
  const auto index = static_cast<std::size_t>(type);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown type";
}

const char* name_of(ReduceOp op) {
  static const char* const names[] = {"sum", "avg", "product", "min", "max", "none"};
  const auto index = static_cast<std::size_t>(op);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown reduction";
}

const char* name_of(OpKind kind) {
  static const char* const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
  const auto index = static_cast<std::size_t>(kind);
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown operation";
}

bool operator==(const OpHeader& a, const OpHeader& b) { return std::memcmp(&a, &b, sizeof(OpHeader)) == 0; }

std::string describe(const OpHeader& header) {
  std::ostringstream text;
  text << name_of(header.kind) << " #" << header.sequence;
  if (header.kind == OpKind::barrier) return text.str();
  text << " (";
  if (header.reduce != ReduceOp::none) text << name_of(header.reduce) << ", ";
  if (header.dtype != DType::bytes) text << name_of(header.dtype) << ", ";
  if (header.tag != 0) text << "type code " << header.tag << ", ";
  if (header.root >= 0) text << "from rank " << header.root << ", ";
  text << header.bytes << " bytes)";
  return text.str();
}

Part part_of(std::size_t count, int parts, int index) {
  constexpr std::size_t unit = 16;
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
