// Runs a function as several ranks, each a thread with its own communicator.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "smddp/communicator.hpp"
#include "smddp/errors.hpp"
#include "transport/fabric.hpp"

namespace smddp::testing {

/// A store for ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.count(key) > 0; }))
      throw TimeoutError("no '" + key + "' in the store");
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Where ranks sit: one host name a rank.
using Hosts = std::vector<std::string>;

constexpr std::chrono::milliseconds kTimeout{20'000};

inline CommunicatorOptions options_for(const Hosts& hosts, int rank) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = static_cast<int>(hosts.size());
  options.timeout = kTimeout;
  options.env.host_id = hosts[static_cast<std::size_t>(rank)];
  // Small chunks and blocks, so that short messages already take several.
  options.env.shm_chunk_bytes = 4096;
  options.env.one_shot_bytes = 512;
  options.env.net_block_bytes = 16384;
  return options;
}

/// How messages go inside a host.
enum class Inside { slots, mailboxes, direct };

inline void go_by(CommunicatorOptions& options, Inside inside) {
  options.env.shm_mailboxes = inside == Inside::mailboxes ? When::always : When::never;
  options.env.shm_direct = inside == Inside::direct ? When::always : When::never;
}

/// Sends data between hosts over libfabric's `provider`; "" leaves the choice as it is.
inline void use_fabric(CommunicatorOptions& options, const std::string& provider) {
  if (provider.empty()) return;
  options.env.net = Net::fabric;
  options.env.fabric_provider = provider;
  // So that short messages already take several.
  options.env.fabric_segment_bytes = 4096;
}

/// Why tests cannot use libfabric's `provider` here; "" if they can.
inline std::string cannot_use(const std::string& provider) {
  try {
    if (!provider.empty()) open_fabric({provider, "127.0.0.1", 0});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Calls `body(rank)` in one thread a rank; rethrows the first rank's error.
inline void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The same with a communicator for each.
inline void run_ranks(const Hosts& hosts, const std::function<void(Communicator&, int)>& body,
                      const std::function<void(CommunicatorOptions&)>& adjust = {}) {
  MemoryStore store;
  run_threads(static_cast<int>(hosts.size()), [&](int rank) {
    CommunicatorOptions options = options_for(hosts, rank);
    if (adjust) adjust(options);
    Communicator communicator(store, options);
    body(communicator, rank);
  });
}

/// One rank's sums of three ranks on a host, of several lengths; rounding shows any change of order.
inline std::vector<float> rounded_sums(int of_rank, const std::function<void(CommunicatorOptions&)>& adjust) {
  std::vector<float> sums;
  run_ranks(
      {"a", "a", "a"},
      [&](Communicator& group, int rank) {
        for (const std::size_t count : {1U, 1000U, 300'001U, 1'500'000U}) {
          std::vector<float> data(count);
          for (std::size_t i = 0; i < count; ++i)
            data[i] = 1.F / static_cast<float>(i + 1 + static_cast<std::size_t>(rank));
          group.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, kTimeout);
          if (rank == of_rank) sums.insert(sums.end(), data.begin(), data.end());
        }
      },
      adjust);
  return sums;
}

/// The text of the E that `body` throws; "" if it throws none. Other errors pass.
template <class E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace smddp::testing
