// Groups, settings and operations drawn at random, each result against one computed on one thread.
//
// DRAWN_GROUPS says how many groups, DRAWN_SEED which is the first: one that failed can be had again alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "patterns.hpp"
#include "ranks.hpp"

namespace smddp::testing {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kGroups = 12;
#else
constexpr std::uint64_t kGroups = 45;
#endif
constexpr int kCalls = 12;
// Where a group finds out by itself which way is faster, it takes that many turns of the calls to go all ways.
constexpr int kTurns = 10;
// Around every buffer, to see what is written beside it.
constexpr std::size_t kMargin = 64;
constexpr unsigned char kUntouched = 0xA5;

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : random_(seed) {}
  /// From `least` to `most`, both included.
  std::size_t upto(std::size_t least, std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(least, most)(random_);
  }
  bool one_in(std::size_t n) { return upto(1, n) == 1; }
  /// Each power of two as likely as the next.
  std::size_t size(std::size_t least, std::size_t most) {
    const double power = std::uniform_real_distribution<double>(std::log2(least), std::log2(most))(random_);
    return std::min(most, std::max(least, static_cast<std::size_t>(std::exp2(power))));
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + upto(0, values.size() - 1));
  }

 private:
  std::mt19937_64 random_;
};

Hosts draw_hosts(Chance& chance) {
  const std::size_t count = chance.of<std::size_t>({1, 1, 1, 2, 2, 3, 4, 5});
  const bool even = !chance.one_in(4);
  const std::size_t each = chance.upto(1, count == 1 ? 9 : 3);
  Hosts hosts;
  for (std::size_t host = 0; host < count; ++host)
    hosts.insert(hosts.end(), even ? each : chance.upto(1, 3), std::string(1, static_cast<char>('a' + host)));
  for (std::size_t i = hosts.size(); chance.one_in(2) && i > 1; --i)
    std::swap(hosts[i - 1], hosts[chance.upto(0, i - 1)]);
  return hosts;
}

void draw_settings(Chance& chance, Env& env) {
  const auto when = [&] { return chance.of({When::automatic, When::always, When::never}); };
  env.tcp_only = chance.one_in(8);
  env.shm_chunk_bytes = chance.size(4096, std::size_t{64} << 10);
  env.shm_stores = chance.of<std::string>({"", "cached", "streaming"});
  env.shm_direct = when();
  env.shm_mailboxes = when();
  env.one_shot_bytes = chance.one_in(3) ? 0 : chance.size(64, std::size_t{64} << 10);
  env.net_block_bytes = chance.size(4096, std::size_t{4} << 20);
  env.net_shard_bytes = chance.size(4096, std::size_t{1} << 20);
  env.net_piece_bytes = chance.size(4096, std::size_t{1} << 20);
  env.net_one_shot_bytes = chance.one_in(3) ? 0 : chance.size(64, std::size_t{1} << 20);
  env.net_try_bytes = chance.one_in(3) ? 0 : chance.size(64, std::size_t{1} << 20);
  env.net_relay = when();
  env.min_shard_bytes = chance.size(1, std::size_t{64} << 10);
  env.streams = static_cast<int>(chance.upto(1, 3));
  env.checksum = chance.one_in(4);
  // Inputs and sums are exact in 16 bits, too.
  env.wire_dtype = chance.of({DType::f32, DType::f32, DType::bf16, DType::f16});
  env.wire_min_bytes = chance.one_in(2) ? 0 : chance.size(64, std::size_t{64} << 10);
  if (chance.one_in(16) && cannot_use("tcp;ofi_rxm").empty()) {
    env.net = Net::fabric;
    env.fabric_provider = "tcp;ofi_rxm";
    env.fabric_segment_bytes = chance.size(4096, std::size_t{512} << 10);
  }
}

/// A call that all ranks make.
struct Call {
  OpKind kind = OpKind::barrier;
  bool rails = false;  ///< All-reduces between the ranks of a rail only, where there are any.
  DType type = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_place = false;
  std::size_t shift = 0;  ///< Of every buffer, in elements.

  std::string describe() const {
    return std::string(name_of(kind)) + (rails ? " of rails" : "") + " of " + std::to_string(count) + " " +
           name_of(type) + ", " + name_of(op) + ", root " + std::to_string(root) + (in_place ? ", in place" : "");
  }
};

Call draw_call(Chance& chance, const Hosts& hosts, const Env& env, std::size_t most_bytes) {
  Call call;
  call.kind = chance.of({OpKind::all_reduce, OpKind::all_reduce, OpKind::all_reduce, OpKind::reduce_scatter,
                         OpKind::reduce_scatter, OpKind::all_gather, OpKind::broadcast, OpKind::barrier});
  call.rails = chance.one_in(6);
  call.type = chance.of({DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8, DType::i8, DType::i16,
                         DType::i32, DType::i64, DType::c64, DType::c128});
  do
    call.op = chance.of({ReduceOp::sum, ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max,
                         ReduceOp::band, ReduceOp::bor, ReduceOp::bxor});
  while (!can_reduce(call.type, call.op) ||
         // An average between hosts is rounded to the wire's type.
         (call.op == ReduceOp::avg && component_of(call.type) == DType::f32 && env.wire_dtype != DType::f32));
  const std::size_t unit = chance.of({env.shm_chunk_bytes, env.net_block_bytes, env.net_piece_bytes}) /
                           size_of(call.type) / chance.of<std::size_t>({1, 2, hosts.size()});
  const std::size_t most = most_bytes / size_of(call.type);
  // Any, or what just fills one of the library's units, or is one more or less.
  call.count = chance.one_in(2) ? std::min(most, unit * chance.upto(1, 4) + chance.upto(0, 2) - 1)
                                : chance.size(1, most) - (chance.one_in(20) ? 1 : 0);
  call.root = static_cast<int>(chance.upto(0, hosts.size() - 1));
  call.in_place = chance.one_in(2);
  call.shift = chance.one_in(2) ? 0 : chance.upto(0, 17);
  return call;
}

/// A buffer somewhere in memory, and what must stay as it is before and behind it.
class Guarded {
 public:
  Guarded(const Buffer& content, const Call& call)
      : first_(kMargin + call.shift * size_of(call.type)),
        bytes_(content.size()),
        memory_(first_ + bytes_ + kMargin, kUntouched) {
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<std::ptrdiff_t>(first_));
  }
  void* data() { return memory_.data() + first_; }
  bool holds(const Buffer& expected) const {
    const auto untouched = [](unsigned char byte) { return byte == kUntouched; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
    return std::equal(begin, end, expected.begin(), expected.end()) && std::all_of(memory_.begin(), begin, untouched) &&
           std::all_of(end, memory_.end(), untouched);
  }

 private:
  std::size_t first_;
  std::size_t bytes_;
  std::vector<unsigned char> memory_;
};

bool all_reduce(Communicator& group, const Call& call, int rank) {
  const Topology& topology = group.topology();
  const Buffer input = pattern(call.type, call.count, rank);
  Guarded in(input, call);
  if (call.rails && topology.has_rails()) {
    group.all_reduce_between_hosts(in.data(), call.count, call.type, call.op, kTimeout);
    return in.holds(reduced(call.type, call.count, topology.rail(), call.op));
  }
  Guarded apart(Buffer(input.size()), call);
  Guarded& out = call.in_place ? in : apart;
  group.all_reduce(in.data(), out.data(), call.count, call.type, call.op, kTimeout);
  std::vector<int> seeds;
  for (int r = 0; r < topology.size; ++r) seeds.push_back(r);
  return out.holds(reduced(call.type, call.count, seeds, call.op)) && (call.in_place || in.holds(input));
}

bool reduce_scatter(Communicator& group, const Call& call, int rank) {
  const int size = group.topology().size;
  const std::size_t count = call.count / static_cast<std::size_t>(size);
  std::vector<Guarded> inputs;
  std::vector<const void*> ins;
  std::vector<int> seeds;
  for (int r = 0; r < size; ++r) inputs.emplace_back(pattern(call.type, count, rank * 3 + r), call);
  for (int r = 0; r < size; ++r) ins.push_back(inputs[static_cast<std::size_t>(r)].data());
  for (int r = 0; r < size; ++r) seeds.push_back(r * 3 + rank);
  Guarded apart(Buffer(count * size_of(call.type)), call);
  Guarded& out = call.in_place ? inputs[static_cast<std::size_t>(rank)] : apart;
  group.reduce_scatter(ins, out.data(), count, call.type, call.op, kTimeout);
  bool right = out.holds(reduced(call.type, count, seeds, call.op));
  for (int r = 0; r < size; ++r)
    right = right && ((call.in_place && r == rank) ||
                      inputs[static_cast<std::size_t>(r)].holds(pattern(call.type, count, rank * 3 + r)));
  return right;
}

bool all_gather(Communicator& group, const Call& call, int rank) {
  const int size = group.topology().size;
  const std::size_t count = call.count / static_cast<std::size_t>(size);
  std::vector<Guarded> results;
  std::vector<void*> outs;
  const Buffer nothing(count * size_of(call.type));
  for (int r = 0; r < size; ++r) results.emplace_back(r == rank ? pattern(call.type, count, rank) : nothing, call);
  for (Guarded& result : results) outs.push_back(result.data());
  Guarded apart(pattern(call.type, count, rank), call);
  group.all_gather(call.in_place ? outs[static_cast<std::size_t>(rank)] : apart.data(), outs,
                   count * size_of(call.type), kTimeout);
  bool right = true;
  for (int r = 0; r < size; ++r)
    right = right && results[static_cast<std::size_t>(r)].holds(pattern(call.type, count, r));
  return right;
}

bool broadcast(Communicator& group, const Call& call, int rank) {
  Buffer content = pattern(call.type, call.count, call.root);
  if (rank != call.root) std::fill(content.begin(), content.end(), static_cast<unsigned char>(0));
  Guarded buffer(content, call);
  group.broadcast(buffer.data(), call.count * size_of(call.type), call.root, kTimeout);
  return buffer.holds(pattern(call.type, call.count, call.root));
}

/// Whether this rank has what it should.
bool make(Communicator& group, const Call& call, int rank) {
  switch (call.kind) {
    case OpKind::all_reduce:
      return all_reduce(group, call, rank);
    case OpKind::reduce_scatter:
      return reduce_scatter(group, call, rank);
    case OpKind::all_gather:
      return all_gather(group, call, rank);
    case OpKind::broadcast:
      return broadcast(group, call, rank);
    default:
      group.barrier(kTimeout);
      return true;
  }
}

/// What was wrong with a group: "" if nothing.
std::string problems_of(std::uint64_t seed) {
  Chance chance(seed);
  const Hosts hosts = draw_hosts(chance);
  CommunicatorOptions drawn;
  draw_settings(chance, drawn.env);
  std::vector<Call> calls;
  const int turns = chance.one_in(4) ? kTurns : 1;
  const std::size_t most_bytes = std::size_t{turns == 1 ? 1024U : 160U} << 10;
  for (int i = 0; i < kCalls; ++i) calls.push_back(draw_call(chance, hosts, drawn.env, most_bytes));
  for (int i = kCalls; i < turns * kCalls; ++i) calls.push_back(calls[static_cast<std::size_t>(i % kCalls)]);
  std::mutex mutex;
  std::string problems;
  const auto note = [&](const std::string& problem) {
    const std::lock_guard<std::mutex> lock(mutex);
    problems += problem + "\n";
  };
  const auto body = [&](Communicator& group, int rank) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::string call =
          "rank " + std::to_string(rank) + ", call " + std::to_string(i) + ", " + calls[i].describe();
      try {
        // Now and then somebody is late.
        if ((seed + i * 7 + static_cast<std::size_t>(rank) * 5) % 11 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(300));
        if (!make(group, calls[i], rank)) note(call);
      } catch (const Error& error) {
        return note(call + ": " + error.what());
      }
    }
  };
  run_ranks(hosts, body, [&](CommunicatorOptions& options) {
    const std::string host = options.env.host_id;
    options.env = drawn.env;
    options.env.host_id = host;
  });
  if (problems.empty()) return "";
  std::string where = "seed " + std::to_string(seed) + ", hosts";
  for (const std::string& host : hosts) where += " " + host;
  return where + "\n" + to_text(drawn.env.shared()) + problems;
}

// Among the first is 455, in which mailboxes too short by a line show.
TEST(Settings, EveryResultIsRightWhateverTheyAre) {
  const std::uint64_t first = number_from("DRAWN_SEED", 450);
  const std::uint64_t groups = number_from("DRAWN_GROUPS", kGroups);
  for (std::uint64_t seed = first; seed < first + groups; ++seed) ASSERT_EQ(problems_of(seed), "");
}

}  // namespace
}  // namespace smddp::testing
