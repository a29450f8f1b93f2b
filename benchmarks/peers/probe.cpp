// Limits of this machine. One mode a call, one JSON line out:
//   probe cores                    round trip between two cores [ns], and the rate at which one reads what the other
//   wrote probe memory OP BYTES RANKS    seconds that the memory traffic no implementation of OP can avoid takes here
// The traffic for float32 messages of BYTES on RANKS ranks of one host, each with a buffer of its own:
//   all_reduce      every rank's buffer is read once and written once
//   all_gather      every rank writes BYTES, reading each rank's part
//   reduce_scatter  every rank reads its part of all buffers and writes it
//   broadcast       every rank but one reads the root's buffer and writes its own
//   sum             what RANKS hosts add up, beside what they move: each its part of its buffer, and what came from the
//                   others, which is in its core's cache
// It is carried out by 1 .. min(RANKS, cores) threads, with cached and with streaming stores; the fastest counts.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// ---- cores

constexpr unsigned kTrips = 5'000;
constexpr unsigned kRepeats = 5;
constexpr unsigned kReads = 100;
constexpr std::size_t kBlock = 256U << 10U;
alignas(128) std::atomic<unsigned> ping{0};
alignas(128) std::atomic<unsigned> pong{0};
alignas(4096) char written[kBlock];
alignas(4096) char copied[kBlock];

void await(const std::atomic<unsigned>& word, unsigned value) {
  while (word.load(std::memory_order_acquire) < value) pause_core();
}

void answer(int core) {
  pin(core);
  for (unsigned k = 1; k <= kTrips * kRepeats; ++k) {
    await(ping, k);
    pong.store(k, std::memory_order_release);
  }
  for (unsigned k = kTrips * kRepeats + 1; k <= kTrips * kRepeats + kReads; ++k) {
    await(ping, k);
    std::memset(written, static_cast<int>(k), kBlock);
    pong.store(k, std::memory_order_release);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Pair {
  double nanoseconds;
  double gigabytes_per_second;
};

Pair between(int first, int second) {
  ping = 0;
  pong = 0;
  std::thread other(answer, second);
  pin(first);
  std::vector<double> trips;
  std::vector<double> rates;
  unsigned k = 0;
  for (unsigned repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = Clock::now();
    for (unsigned trip = 0; trip < kTrips; ++trip) {
      ping.store(++k, std::memory_order_release);
      await(pong, k);
    }
    trips.push_back(since(start) / kTrips * 1e9);
  }
  for (unsigned read = 0; read < kReads; ++read) {
    ping.store(++k, std::memory_order_release);
    await(pong, k);
    const auto start = Clock::now();
    std::memcpy(copied, written, kBlock);
    asm volatile("" ::"r"(copied) : "memory");
    rates.push_back(kBlock / since(start) / 1e9);
  }
  other.join();
  return {median(trips), median(rates)};
}

int cores() {
  const std::vector<int> found = allowed_cores();
  Pair worst{0, 0};
  // Every cache of a big machine is not worth probing: the first core against up to seven others.
  for (std::size_t i = 1; i < std::min<std::size_t>(found.size(), 8); ++i) {
    const Pair pair = between(found[0], found[i]);
    if (pair.nanoseconds > worst.nanoseconds) worst = pair;
  }
  std::printf("{\"cores\": %zu, \"nanoseconds\": %.1f, \"gigabytes_per_second\": %.1f}\n", found.size(),
              worst.nanoseconds, worst.gigabytes_per_second);
  return 0;
}

// ---- memory

struct Work {
  std::vector<const float*> sources;  // Summed element by element into `target`.
  float* target;
  std::size_t count;
};

void cached(const Work& work) {
  float* __restrict target = work.target;
  const float* first = work.sources[0];
  if (work.sources.size() == 1 && first == target) {
    for (std::size_t i = 0; i < work.count; ++i) target[i] += 1.0F;
  } else if (work.sources.size() == 1) {
    std::memcpy(target, first, work.count * sizeof(float));
  } else if (work.sources.size() == 2) {
    const float* second = work.sources[1];
    for (std::size_t i = 0; i < work.count; ++i) target[i] = first[i] + second[i];
  } else {
    constexpr std::size_t kStrip = 1024;  // One strip of the target stays in L1 while the sources pass.
    for (std::size_t i = 0; i < work.count; i += kStrip) {
      const std::size_t end = std::min(work.count, i + kStrip);
      for (std::size_t k = i; k < end; ++k) target[k] = first[k];
      for (std::size_t s = 1; s < work.sources.size(); ++s)
        for (std::size_t k = i; k < end; ++k) target[k] += work.sources[s][k];
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void streaming(const Work& work) {
  for (std::size_t i = 0; i + 8 <= work.count; i += 8) {
    __m256 sum = _mm256_load_ps(work.sources[0] + i);
    for (std::size_t s = 1; s < work.sources.size(); ++s) sum = _mm256_add_ps(sum, _mm256_load_ps(work.sources[s] + i));
    _mm256_stream_ps(work.target + i, sum);
  }
  _mm_sfence();
}
#endif

using Kernel = void (*)(const Work&);

std::vector<Kernel> kernels() {
  std::vector<Kernel> found{cached};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) found.push_back(streaming);
#endif
  return found;
}

// The pieces of work of one thread: the ranks are dealt out, and a single rank's work is cut when there are fewer
// ranks.
std::vector<Work> plan(const std::string& operation, std::vector<float*>& full, std::vector<float*>& part,
                       std::size_t count) {
  constexpr std::size_t kPiece = std::size_t{16} << 10U;  // Floats that arrive, and are summed, at a time.
  const std::size_t ranks = full.size();
  const std::size_t share = count / ranks;
  std::vector<Work> works;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (operation == "all_reduce") works.push_back({{full[rank]}, full[rank], count});
    if (operation == "broadcast" && rank > 0) works.push_back({{full[0]}, full[rank], count});
    if (operation == "all_gather")
      for (std::size_t from = 0; from < ranks; ++from)
        works.push_back({{part[from]}, full[rank] + from * share, share});
    if (operation == "reduce_scatter") {
      Work work{{}, part[rank], share};
      for (const float* source : full) work.sources.push_back(source + rank * share);
      works.push_back(work);
    }
    if (operation == "sum")
      for (std::size_t at = 0; at < share; at += kPiece) {
        Work work{{full[rank] + rank * share + at}, full[rank] + rank * share + at, std::min(kPiece, share - at)};
        work.sources.insert(work.sources.end(), ranks - 1, part[rank]);
        works.push_back(work);
      }
  }
  return works;
}

Work slice(const Work& work, std::size_t index, std::size_t of) {
  const std::size_t step = work.count / of / 64 * 64;  // Keeps every slice on a cache line.
  Work cut{work.sources, work.target + index * step, index + 1 == of ? work.count - index * step : step};
  for (const float*& source : cut.sources) source += index * step;
  return cut;
}

double seconds_of(const std::vector<Work>& works, Kernel kernel, std::size_t threads, std::size_t bytes) {
  const std::vector<int> found = allowed_cores();
  const std::size_t repeats = std::clamp<std::size_t>((std::size_t{64} << 20U) / bytes, 5, 2000);
  std::vector<double> times(repeats);
  std::barrier gate(static_cast<std::ptrdiff_t>(threads));
  std::vector<std::thread> crew;
  for (std::size_t index = 0; index < threads; ++index)
    crew.emplace_back([&, index] {
      pin(found[index]);
      for (std::size_t repeat = 0; repeat < repeats; ++repeat) {
        gate.arrive_and_wait();
        const auto start = Clock::now();
        for (const Work& work : works) kernel(slice(work, index, threads));
        gate.arrive_and_wait();
        if (index == 0) times[repeat] = since(start);
      }
    });
  for (std::thread& thread : crew) thread.join();
  return median(times);
}

std::vector<float*> buffers(std::size_t how_many, std::size_t bytes) {
  std::vector<float*> made;
  for (std::size_t i = 0; i < how_many; ++i) {
    made.push_back(static_cast<float*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    std::memset(made.back(), 0, bytes);
  }
  return made;
}

int memory(const std::string& operation, std::size_t bytes, std::size_t ranks) {
  std::vector<float*> full = buffers(ranks, bytes);
  std::vector<float*> part = buffers(ranks, bytes / ranks);
  const std::vector<Work> works = plan(operation, full, part, bytes / sizeof(float));
  const std::size_t most = std::min(ranks, allowed_cores().size());
  double best = 1e9;
  std::printf("{\"seconds_by_threads\": [");
  for (std::size_t threads = 1; threads <= most; ++threads) {
    double fastest = 1e9;
    for (const Kernel kernel : kernels()) fastest = std::min(fastest, seconds_of(works, kernel, threads, bytes));
    std::printf("%s%.3e", threads > 1 ? ", " : "", fastest);
    best = std::min(best, fastest);
  }
  std::printf("], \"seconds\": %.3e}\n", best);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "cores") return cores();
  if (mode == "memory" && argc == 5)
    return memory(argv[2], std::strtoull(argv[3], nullptr, 10), std::strtoull(argv[4], nullptr, 10));
  std::fputs("usage: probe cores | probe memory OPERATION BYTES RANKS\n", stderr);
  return 2;
}
