// torch's rendezvous store behind the core's interface.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "compat.hpp"
#include "runtime/task_pool.hpp"
#include "smddp/store.hpp"

namespace smddp::torch_binding {

/// torch's TCP store waits for an answer without limit, and who keeps it may be stopped or cut off. So a thread asks,
/// which is left behind if no answer has come when this goes.
class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store);
  ~StoreAdapter() override;
  StoreAdapter(const StoreAdapter&) = delete;
  StoreAdapter& operator=(const StoreAdapter&) = delete;

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  bool silent() const override { return silent_; }

 private:
  template <class Request>
  auto ask(Request request, std::chrono::milliseconds patience) -> decltype(request());
  void await(const std::future<void>& answer, std::chrono::milliseconds patience);

  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<TaskPool> asker_;
  std::future<void> asked_;  // until it is ready, the thread waits for an answer
  bool silent_ = false;
};

}  // namespace smddp::torch_binding
