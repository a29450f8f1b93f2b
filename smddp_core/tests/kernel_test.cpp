// The reduction loops against scalar arithmetic in double, for every type and operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "half_types.hpp"
#include "kernel/cpu_features.hpp"
#include "kernel/kernel_table.hpp"
#include "kernel/reduce.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

using testing::bf16_of;
using testing::f16_of;
using testing::float_of_bf16;
using testing::float_of_f16;

template <class T>
std::vector<T> reduced(std::vector<std::vector<T>> sources, Reduction reduction) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<T> result(sources[0].size());
  reduce_into(result.data(), pointers.data(), static_cast<int>(pointers.size()), result.size(), reduction);
  return result;
}

constexpr DType kArithmetic[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8,
                                 DType::i8,  DType::i16, DType::i32, DType::i64};
constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                                    ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

// Any bits at all: as floating numbers some of them are infinite, some no numbers.
std::vector<std::vector<std::byte>> noise(std::size_t buffers, std::size_t bytes) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> all(buffers, std::vector<std::byte>(bytes));
  for (auto& buffer : all)
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
  return all;
}

// Numbers whose lower bits, the sign left out, are above infinity's are NaN.
template <class Bits>
void make_nans_alike(std::vector<std::byte>& bytes, Bits infinity) {
  const Bits magnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1U);
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, &bytes[at], sizeof(Bits));
    if ((bits & magnitude) > infinity) std::memcpy(&bytes[at], &magnitude, sizeof(Bits));
  }
}

// Of two NaNs a processor passes on the first operand, and which one that is, a compiler may choose.
void make_nans_alike(std::vector<std::byte>& bytes, DType type) {
  if (type == DType::f16) make_nans_alike<std::uint16_t>(bytes, 0x7C00);
  if (type == DType::bf16) make_nans_alike<std::uint16_t>(bytes, 0x7F80);
  if (type == DType::f32) make_nans_alike<std::uint32_t>(bytes, 0x7F800000);
  if (type == DType::f64) make_nans_alike<std::uint64_t>(bytes, 0x7FF0000000000000);
}

TEST(Kernel, SumsFloatsInRankOrder) {
  // (1e8 + 1) + -1e8 is 0 in f32, 1e8 + -1e8 + 1 is 1: the order shows.
  EXPECT_EQ(reduced<float>({{1e8F}, {1.F}, {-1e8F}}, {ReduceOp::sum, DType::f32, DType::f32, 1})[0], 0.F);
  EXPECT_EQ(reduced<float>({{1e8F}, {-1e8F}, {1.F}}, {ReduceOp::sum, DType::f32, DType::f32, 1})[0], 1.F);
}

TEST(Kernel, SumsPowersOfTwoInPairs) {
  const auto in_pairs = [](const std::vector<float>& values) {
    std::vector<const void*> sources;
    for (const float& value : values) sources.push_back(&value);
    float sum = 0;
    reduce_in_pairs(&sum, sources.data(), static_cast<int>(values.size()), 1,
                    {ReduceOp::sum, DType::f32, DType::f32, 1});
    return sum;
  };
  // 1e8F + 3 is 1e8F, 1e8F + 6 is 1e8F + 8. In rank order the first and the last two are 1, 2 and 1e8F + 8.
  EXPECT_EQ(in_pairs({1e8F, 1.F, -1e8F, 1.F}), 0.F);
  EXPECT_EQ(in_pairs({1e8F, -1e8F, 1.F, 1.F}), 2.F);
  EXPECT_EQ(in_pairs({1e8F, 1.F, -1e8F}), 0.F);
  EXPECT_EQ(in_pairs({1e8F, 1.F, 0.F, 0.F, -1e8F, 0.F, 1.F, 1.F}), 0.F);
  EXPECT_EQ(in_pairs({1.F, 1.F, 1.F, 5.F, 1e8F, 3.F, 3.F, 3.F}), 1e8F + 16.F);
}

TEST(Kernel, AllOperations) {
  const std::vector<std::vector<std::int32_t>> ints{{7, -3, 5}, {2, -9, 5}, {-4, 1, 6}};
  const auto on = [&](ReduceOp op, int divisor) {
    return reduced<std::int32_t>(ints, {op, DType::i32, DType::i32, divisor});
  };
  EXPECT_EQ(on(ReduceOp::sum, 1), (std::vector<std::int32_t>{5, -11, 16}));
  EXPECT_EQ(on(ReduceOp::avg, 3), (std::vector<std::int32_t>{1, -3, 5}));
  EXPECT_EQ(on(ReduceOp::product, 1), (std::vector<std::int32_t>{-56, 27, 150}));
  EXPECT_EQ(on(ReduceOp::min, 1), (std::vector<std::int32_t>{-4, -9, 5}));
  EXPECT_EQ(on(ReduceOp::max, 1), (std::vector<std::int32_t>{7, 1, 6}));
}

TEST(Kernel, IntegersWrap) {
  EXPECT_EQ(reduced<std::uint8_t>({{200}, {100}}, {ReduceOp::sum, DType::u8, DType::u8, 1})[0], 44);
  EXPECT_EQ(reduced<std::int8_t>({{100}, {100}}, {ReduceOp::sum, DType::i8, DType::i8, 1})[0], -56);
  EXPECT_EQ(reduced<std::int16_t>({{300}, {300}}, {ReduceOp::product, DType::i16, DType::i16, 1})[0], 24464);
  const auto big = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduced<std::int64_t>({{big}, {1}}, {ReduceOp::sum, DType::i64, DType::i64, 1})[0],
            std::numeric_limits<std::int64_t>::min());
}

TEST(Kernel, Bitwise) {
  const std::vector<std::vector<std::int16_t>> in{{0x0FF0, -1}, {0x3C3C, 5}, {0x1111, 6}};
  const auto on = [&](ReduceOp op) { return reduced<std::int16_t>(in, {op, DType::i16, DType::i16, 1}); };
  EXPECT_EQ(on(ReduceOp::band), (std::vector<std::int16_t>{0x0FF0 & 0x3C3C & 0x1111, 4}));
  EXPECT_EQ(on(ReduceOp::bor), (std::vector<std::int16_t>{0x0FF0 | 0x3C3C | 0x1111, -1}));
  EXPECT_EQ(on(ReduceOp::bxor), (std::vector<std::int16_t>{0x0FF0 ^ 0x3C3C ^ 0x1111, -1 ^ 5 ^ 6}));
}

TEST(Kernel, AveragesOfIntegersDoNotWrap) {
  const auto of = [](auto big, DType type) {
    using T = decltype(big);
    const auto result = reduced<T>({{std::numeric_limits<T>::max(), std::numeric_limits<T>::min()},
                                    {std::numeric_limits<T>::max(), std::numeric_limits<T>::min()}},
                                   {ReduceOp::avg, type, type, 2});
    EXPECT_EQ(result[0], std::numeric_limits<T>::max()) << name_of(type);
    EXPECT_EQ(result[1], std::numeric_limits<T>::min()) << name_of(type);
  };
  of(std::uint8_t{}, DType::u8);
  of(std::int8_t{}, DType::i8);
  of(std::int16_t{}, DType::i16);
  of(std::int32_t{}, DType::i32);
  of(std::int64_t{}, DType::i64);
}

// What the hierarchy does: a wide sum inside each host, then a sum of those, divided.
TEST(Kernel, AveragesInTwoSteps) {
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  const std::int64_t inputs[] = {big, big - 1};
  const void* sources[] = {&inputs[0], &inputs[0]};
  alignas(16) std::byte sums[2][16];
  reduce_into(sums[0], sources, 2, 1, {ReduceOp::avg, DType::i64, DType::i128, 1});
  sources[0] = sources[1] = &inputs[1];
  reduce_into(sums[1], sources, 2, 1, {ReduceOp::avg, DType::i64, DType::i128, 1});
  const void* partial[] = {sums[0], sums[1]};
  std::int64_t average = 0;
  reduce_into(&average, partial, 2, 1, {ReduceOp::avg, DType::i128, DType::i64, 4});
  EXPECT_EQ(average, big - 1);
  EXPECT_THROW(reduce_into(&average, partial, 2, 1, {ReduceOp::avg, DType::i8, DType::u8, 1}), UsageError);
  EXPECT_THROW(reduce_into(&average, partial, 2, 1, {ReduceOp::sum, DType::i8, DType::i64, 1}), UsageError);
}

TEST(Kernel, NanWinsWhoeverHasIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
    for (int holder = 0; holder < 3; ++holder) {
      std::vector<std::vector<float>> in(3, {1.F, 2.F});
      in[static_cast<std::size_t>(holder)][0] = nan;
      const auto result = reduced<float>(in, {op, DType::f32, DType::f32, 1});
      EXPECT_TRUE(std::isnan(result[0])) << name_of(op) << " with a NaN at " << holder;
      EXPECT_EQ(result[1], 2.F);
    }
}

// 256 + 1 + 1: each step alone rounds back to 256 in bf16 (8 bits), the sum 258 is representable.
TEST(Kernel, Bfloat16RoundsOnce) {
  const auto result = reduced<std::uint16_t>({{bf16_of(256)}, {bf16_of(1)}, {bf16_of(1)}},
                                             {ReduceOp::sum, DType::bf16, DType::bf16, 1});
  EXPECT_EQ(float_of_bf16(result[0]), 258.F);
}

TEST(Kernel, Float16RoundsOnceToNearestEven) {
  const auto result =
      reduced<std::uint16_t>({{f16_of(2048)}, {f16_of(1)}, {f16_of(2)}}, {ReduceOp::sum, DType::f16, DType::f16, 1});
  // 2051 lies between 2050 and 2052: even mantissa wins. Rounding at each step would give 2050.
  EXPECT_EQ(float_of_f16(result[0]), 2052.F);
}

#ifdef __FLT16_MANT_DIG__  // the compiler has _Float16: GCC from 12 on
template <class To, class From>
std::vector<To> converted(const std::vector<From>& in, Kernel kernel) {
  std::vector<To> out(in.size());
  const void* source = in.data();
  kernel(out.data(), &source, 1, in.size(), 1);
  return out;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Every float16, and for each pattern of a float32's upper bits the ends and the middles between two float16.
TEST(Kernel, Float16IsConvertedAsTheCompilerDoes) {
  std::vector<_Float16> halves(0x10000);
  for (std::uint32_t bits = 0; bits < halves.size(); ++bits) std::memcpy(&halves[bits], &bits, sizeof(_Float16));
  std::vector<float> floats;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0u, 0x1u, 0xFFFu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x7FFFu, 0x8000u, 0x8001u,
                                      0xEFFFu, 0xF000u, 0xF001u, 0xFFFFu}) {
      const std::uint32_t bits = upper << 16 | lower;
      floats.emplace_back();
      std::memcpy(&floats.back(), &bits, sizeof(bits));
    }
  std::vector<std::uint32_t> wide(halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) wide[i] = bits_of(static_cast<float>(halves[i]));
  std::vector<std::uint16_t> narrow(floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const _Float16 half = static_cast<_Float16>(floats[i]);
    std::memcpy(&narrow[i], &half, sizeof(half));
  }
  std::vector<std::pair<const char*, Kernel (*)(DType, DType, ReduceOp)>> sets{{"baseline", baseline::find}};
#ifdef SMDDP_X86_LEVELS
  if (has_x86_64_v3()) sets.emplace_back("x86_64_v3", x86_64_v3::find);
  if (has_x86_64_v4()) sets.emplace_back("x86_64_v4", x86_64_v4::find);
#endif
  for (const auto& [name, find] : sets) {
    EXPECT_EQ(converted<std::uint32_t>(halves, find(DType::f16, DType::f32, ReduceOp::sum)), wide) << name;
    EXPECT_EQ(converted<std::uint16_t>(floats, find(DType::f32, DType::f16, ReduceOp::sum)), narrow) << name;
  }
}
#endif

TEST(Kernel, Bfloat16KeepsNanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto result =
      reduced<std::uint16_t>({{bf16_of(infinity), bf16_of(infinity), 0x7F81}, {bf16_of(1), bf16_of(-infinity), 0}},
                             {ReduceOp::sum, DType::bf16, DType::bf16, 1});
  EXPECT_EQ(float_of_bf16(result[0]), infinity);
  EXPECT_TRUE(std::isnan(float_of_bf16(result[1])));
  EXPECT_TRUE(std::isnan(float_of_bf16(result[2])));
}

TEST(Kernel, DestinationMayBeASource) {
  for (int n = 1; n <= 9; ++n)
    for (int destination = 0; destination < n; ++destination) {
      std::vector<std::vector<float>> sources;
      std::vector<const void*> pointers;
      for (int s = 0; s < n; ++s) sources.emplace_back(2000, static_cast<float>(s + 1));
      for (const auto& source : sources) pointers.push_back(source.data());
      auto& out = sources[static_cast<std::size_t>(destination)];
      reduce_into(out.data(), pointers.data(), n, out.size(), {ReduceOp::sum, DType::f32, DType::f32, 1});
      EXPECT_EQ(out, std::vector<float>(2000, static_cast<float>(n * (n + 1) / 2))) << n << " into " << destination;
    }
}

// Few sources are reduced in one pass, more in several: each number against one element at a time, in the same order.
TEST(Kernel, AnyNumberOfSources) {
  const std::size_t count = 1021;
  for (int n = 1; n <= 11; ++n) {
    std::vector<std::vector<float>> sources;
    for (int s = 0; s < n; ++s) {
      sources.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i)
        sources.back()[i] = std::sin(static_cast<float>(i) * 1.7F + static_cast<float>(s)) * 1e3F;
    }
    std::vector<float> sum = sources[0];
    std::vector<float> least = sources[0];
    for (int s = 1; s < n; ++s)
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] += sources[static_cast<std::size_t>(s)][i];
        least[i] = std::min(least[i], sources[static_cast<std::size_t>(s)][i]);
      }
    std::vector<float> average = sum;
    for (float& element : average) element /= static_cast<float>(n);
    EXPECT_EQ(reduced(sources, {ReduceOp::sum, DType::f32, DType::f32, 1}), sum) << n;
    EXPECT_EQ(reduced(sources, {ReduceOp::avg, DType::f32, DType::f32, n}), average) << n;
    EXPECT_EQ(reduced(sources, {ReduceOp::min, DType::f32, DType::f32, 1}), least) << n;
  }
}

// Each half wide, then both together, rounded and divided once; in several tiles.
std::vector<std::byte> halves_together(const std::vector<const void*>& sources, std::size_t count,
                                       const Reduction& reduction) {
  std::vector<std::byte> result(count * size_of(reduction.out));
  const int n = static_cast<int>(sources.size());
  if (n <= 2) {
    reduce_into(result.data(), sources.data(), n, count, reduction);
    return result;
  }
  const DType wide = accumulator_of(reduction.in, reduction.op);
  const Reduction inside{reduction.op, reduction.in, wide, 1};
  const auto middle = sources.begin() + n / 2;
  const auto lower = halves_together({sources.begin(), middle}, count, inside);
  const auto upper = halves_together({middle, sources.end()}, count, inside);
  const void* both[] = {lower.data(), upper.data()};
  reduce_into(result.data(), both, 2, count, {reduction.op, wide, reduction.out, reduction.divisor});
  return result;
}

TEST(Kernel, PairsOfPairsAreReducedWide) {
  const std::size_t bytes = 20'000;
  for (const DType type : kArithmetic)
    for (const ReduceOp op : kReductions) {
      if (!can_reduce(type, op)) continue;
      for (const int n : {1, 2, 3, 4, 6, 8, 16}) {
        const auto sources = noise(static_cast<std::size_t>(n), bytes);
        std::vector<const void*> pointers;
        for (const auto& source : sources) pointers.push_back(source.data());
        const Reduction reduction{op, type, type, op == ReduceOp::avg ? n : 1};
        const std::size_t count = bytes / size_of(type);
        std::vector<std::byte> got(bytes);
        reduce_in_pairs(got.data(), pointers.data(), n, count, reduction);
        const bool floats = accumulator_of(type, ReduceOp::avg) == type || type == DType::f16 || type == DType::bf16;
        std::vector<std::byte> expected(bytes);
        if (floats && n != 3 && n != 6)
          expected = halves_together(pointers, count, reduction);
        else
          reduce_into(expected.data(), pointers.data(), n, count, reduction);
        make_nans_alike(got, type);
        make_nans_alike(expected, type);
        EXPECT_EQ(got, expected) << name_of(type) << " " << name_of(op) << " of " << n;
      }
    }
}

// Wherever cache lines begin, and one of the sources included, nothing beyond the last element is written.
TEST(Kernel, IntoBothIsTheSameTwice) {
  const std::size_t bytes = 3000;
  const std::size_t room = 64;
  for (const DType type : kArithmetic)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max})
      for (const Stores stores : {Stores::cached, Stores::streaming})
        for (int n = 1; n <= 9; ++n) {
          auto sources = noise(static_cast<std::size_t>(n), bytes);
          std::vector<const void*> pointers;
          for (const auto& source : sources) pointers.push_back(source.data());
          const Reduction reduction{op, type, type, op == ReduceOp::avg ? n : 1};
          const std::size_t count = bytes / size_of(type);
          std::vector<std::byte> expected(bytes);
          reduce_into(expected.data(), pointers.data(), n, count, reduction);
          const std::size_t shift = static_cast<std::size_t>(n) * size_of(type) % room;
          std::vector<std::byte> also(bytes + 2 * room, std::byte{7});
          reduce_into_both(sources[0].data(), &also[shift], stores, pointers.data(), n, count, reduction);
          const std::string what = std::string(name_of(type)) + " " + name_of(op) + " of " + std::to_string(n);
          EXPECT_EQ(sources[0], expected) << what;
          EXPECT_EQ(std::memcmp(&also[shift], expected.data(), bytes), 0) << what;
          EXPECT_EQ(std::count(also.begin(), also.end(), std::byte{7}) -
                        std::count(expected.begin(), expected.end(), std::byte{7}),
                    static_cast<std::ptrdiff_t>(2 * room))
              << what;
        }
}

// A mailbox's answer is written over what it was made of.
TEST(Kernel, IntoBothOverwritesASource) {
  const std::size_t bytes = 3008;
  for (const DType type : kArithmetic)
    for (const Stores stores : {Stores::cached, Stores::streaming})
      for (const std::size_t n : {std::size_t{2}, std::size_t{3}, std::size_t{7}})
        for (std::size_t over = 0; over < n; ++over) {
          auto sources = noise(n, bytes);
          std::vector<const void*> pointers;
          for (const auto& source : sources) pointers.push_back(source.data());
          const Reduction reduction{ReduceOp::sum, type, type, 1};
          const std::size_t count = bytes / size_of(type);
          std::vector<std::byte> expected(bytes);
          reduce_into(expected.data(), pointers.data(), static_cast<int>(n), count, reduction);
          std::vector<std::byte> got(bytes);
          reduce_into_both(got.data(), sources[over].data(), stores, pointers.data(), static_cast<int>(n), count,
                           reduction);
          EXPECT_EQ(got, expected) << name_of(type) << " over source " << over << " of " << n;
          EXPECT_EQ(sources[over], expected) << name_of(type) << " over source " << over << " of " << n;
        }
}

// What is rounded off is not lost: code and rest together are the number, if both are finite.
TEST(Kernel, RoundingKeepsWhatItLeavesOut) {
  for (const DType type : {DType::f16, DType::bf16}) {
    std::vector<float> in(1021);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = std::sin(static_cast<float>(i)) * 100.F;
    in[7] = std::numeric_limits<float>::infinity();
    in[8] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> left(in.size(), 0.25F);
    std::vector<std::uint16_t> code(in.size());
    round_into(type, code.data(), in.data(), left.data(), in.size());
    std::vector<float> back(in.size());
    const void* const source = code.data();
    reduce_into(back.data(), &source, 1, back.size(), {ReduceOp::sum, type, DType::f32, 1});
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (std::isfinite(in[i])) {
        EXPECT_EQ(back[i] + left[i], in[i] + 0.25F) << name_of(type) << " " << i;
        EXPECT_LE(std::fabs(left[i]), std::fabs(in[i] + 0.25F) / 256) << name_of(type) << " " << i;
      } else {
        EXPECT_EQ(left[i], 0.F);
        EXPECT_FALSE(std::isfinite(back[i]));
      }
    }
  }
  float value = 0;
  EXPECT_THROW(round_into(DType::f32, &value, &value, &value, 1), UsageError);
}

TEST(Kernel, RefusesWhatItHasNot) {
  float value = 0;
  const void* sources[] = {&value};
  EXPECT_THROW(reduce_into(&value, sources, 1, 1, {ReduceOp::sum, DType::f32, DType::i32, 1}), UsageError);
  EXPECT_THROW(reduce_into(&value, sources, 1, 1, {ReduceOp::none, DType::f32, DType::f32, 1}), UsageError);
}

#ifdef __x86_64__
// Ranks may run on different machines: all instruction sets must give the same bits, for every number of sources.
TEST(Kernel, InstructionSetsAgree) {
  const std::vector<std::vector<std::byte>> sources = noise(9, 1021 * 8);
  const auto run = [&](auto find, DType type, ReduceOp op, int count_of_sources) {
    std::vector<const void*> pointers;
    for (const auto& source : sources) pointers.push_back(source.data());
    std::vector<std::byte> out(sources[0].size());
    const int divisor = op == ReduceOp::avg ? count_of_sources : 1;
    find(type, type, op)(out.data(), pointers.data(), count_of_sources, out.size() / size_of(type), divisor);
    make_nans_alike(out, type);
    return out;
  };
  for (const DType type : kArithmetic)
    for (const ReduceOp op : kReductions)
      for (int n = 1; n <= static_cast<int>(sources.size()) && baseline::find(type, type, op); ++n) {
        const std::string what = std::string(name_of(type)) + " " + name_of(op) + " of " + std::to_string(n);
        const auto expected = run(baseline::find, type, op, n);
        if (accumulator_of(type, op) != accumulator_of(type, ReduceOp::sum)) {  // kernel_table.hpp says why
          EXPECT_FALSE(x86_64_v3::find(type, type, op)) << what;
          continue;
        }
        if (has_x86_64_v3()) {
          EXPECT_EQ(run(x86_64_v3::find, type, op, n), expected) << what;
        }
        if (has_x86_64_v4()) {
          EXPECT_EQ(run(x86_64_v4::find, type, op, n), expected) << what;
        }
      }
}

TEST(Kernel, InstructionSetsRoundAlike) {
  const auto in = noise(2, 1021 * sizeof(float));
  const auto run = [&](auto find, DType type) {
    std::vector<std::byte> left = in[1];
    std::vector<std::byte> code(1021 * 2);
    find(type)(code.data(), reinterpret_cast<const float*>(in[0].data()), reinterpret_cast<float*>(left.data()), 1021);
    code.insert(code.end(), left.begin(), left.end());
    return code;
  };
  for (const DType type : {DType::f16, DType::bf16}) {
    const auto expected = run(baseline::find_round, type);
    if (has_x86_64_v3()) {
      EXPECT_EQ(run(x86_64_v3::find_round, type), expected) << name_of(type);
    }
    if (has_x86_64_v4()) {
      EXPECT_EQ(run(x86_64_v4::find_round, type), expected) << name_of(type);
    }
  }
}
#endif

}  // namespace
}  // namespace smddp
