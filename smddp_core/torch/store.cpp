#include "store.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "expendable.hpp"
#include "smddp/errors.hpp"

namespace smddp::torch_binding {
namespace {

using Milliseconds = std::chrono::milliseconds;

// How long an answer may take at least. A store serves all ranks of a job.
constexpr Milliseconds kPatience{500};

template <class Request>
auto translated(Request request) -> decltype(request()) {
  try {
    return request();
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::system, std::string("smddp: the store, which rank 0 or the launcher keeps, fails: ") +
                                       error.what_without_backtrace());
  }
}

}  // namespace

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)), asker_(std::make_unique<TaskPool>(1, "smddp-store")) {
  asker_->post(&make_expendable);
}

StoreAdapter::~StoreAdapter() {
  if (silent_) static_cast<void>(asker_.release());
}

void StoreAdapter::await(const std::future<void>& answer, Milliseconds patience) {
  silent_ = answer.valid() && answer.wait_for(patience) != std::future_status::ready;
  if (silent_) throw TimeoutError("smddp: the store does not answer");
}

template <class Request>
auto StoreAdapter::ask(Request request, Milliseconds patience) -> decltype(request()) {
  await(asked_, patience);
  // Whoever asks may have gone when the answer comes.
  auto task = std::make_shared<std::packaged_task<decltype(request())()>>([request] { return translated(request); });
  auto answer = task->get_future();
  std::promise<void> done;
  asked_ = done.get_future();
  asker_->post([task, done = std::make_shared<std::promise<void>>(std::move(done))] {
    (*task)();
    done->set_value();
  });
  await(asked_, patience);
  return answer.get();
}

void StoreAdapter::set(const std::string& key, const std::string& value) {
  const std::vector<std::uint8_t> bytes(value.begin(), value.end());
  ask([store = store_, key, bytes] { store->set(key, bytes); }, kPatience);
}

// check() again and again instead of wait(): torch's TCP store writes warnings for each wait() that times out, and
// whoever waits here looks at its peers several times a second.
std::string StoreAdapter::get(const std::string& key, Milliseconds timeout) {
  constexpr Milliseconds kLongestNap{20};
  const auto until = std::chrono::steady_clock::now() + timeout;
  const Milliseconds patience = std::max(timeout, kPatience);
  Milliseconds nap{1};
  while (!ask([store = store_, key] { return store->check({key}); }, patience)) {
    if (std::chrono::steady_clock::now() >= until) throw TimeoutError("smddp: the store has no '" + key + "'");
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
  const auto value = ask([store = store_, key] { return store->get(key); }, patience);
  return std::string(value.begin(), value.end());
}

}  // namespace smddp::torch_binding
