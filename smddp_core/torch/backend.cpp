// Group life cycle. The operations are in collectives.cpp and fallback.cpp.
#include "backend.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "delegated_failure.hpp"
#include "delegated_work.hpp"
#include "gil.hpp"
#include "runtime/cpu_list.hpp"
#include "smddp/errors.hpp"
#include "store.hpp"
#include "watched_store.hpp"

namespace smddp::torch_binding {
namespace {

using Milliseconds = std::chrono::milliseconds;

// How long operations that nobody waited for may take when the group is given up. A rank that leaves after an exception
// must not wait for peers that wait for it.
constexpr Milliseconds kLeavePatience{5000};

// gloo may notice a lost rank before the control plane does.
constexpr Milliseconds kSetUpPatience{500};

// Groups that have threads. Leaked on purpose: groups may outlive static destructors.
struct Live {
  std::mutex mutex;
  std::set<Backend*> backends;
};
Live& live() {
  static Live* const instance = new Live;
  return *instance;
}

std::shared_ptr<Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const GroupOptions& group) {
  StoreAdapter adapter(store);
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = group.timeout;
  options.name = group.name;
  options.job_ranks = group.job_ranks;
  options.refusal = group.refusal;
  options.watch = [&group] { Backend::check_known_dead(group); };
  options.env = Env::from_process(group.settings, options.refusal);
  return std::make_shared<Communicator>(adapter, options);
}

// gloo's destructor waits for its operations, and those of a dead group may wait for their ranks until the timeout: not
// this thread with them, nor the end of the process.
void drop_in_background(c10::intrusive_ptr<BackendBase> group) {
  if (!group) return;
  std::thread([last = std::move(group)]() mutable { last.reset(); }).detach();
}

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, GroupOptions options,
                 const Interpreter& interpreter)
    : BackendBase(rank, size),
      group_options_(std::move(options)),
      options_(c10::make_intrusive<BackendBase::Options>("smddp", group_options_.timeout)),
      interpreter_(interpreter),
      communicator_(
          make_communicator(c10::make_intrusive<c10d::PrefixStore>("smddp", store), rank, size, group_options_)) {
  const std::string cpus = Env::from_process(group_options_.settings).cpus;
  if (!cpus.empty()) queue_.run_on(*cpus_from(cpus));
  set_group_name(*options_, group_options_.name, 0);
  make_fallbacks(store);
  const std::lock_guard<std::mutex> lock(live().mutex);
  live().backends.insert(this);
}

// After ours: a rank that dies before the group stands is noticed there. Under keys of this group alone, since gloo and
// NCCL take what an earlier one has left in the store for their own.
void Backend::make_fallbacks(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto ours = c10::make_intrusive<c10d::PrefixStore>(communicator_->id(), store);
  const auto watch = [group = std::weak_ptr<Communicator>(communicator_)] {
    if (const auto alive = group.lock()) alive->check_peers("group set-up");
  };
  const auto watched = c10::make_intrusive<WatchedStore>(ours, watch);
  try {
    Fallbacks fallbacks = interpreter_.make_fallbacks(watched, communicator_->topology(),
                                                      communicator_->env().gpu_exchange, group_options_.timeout, watch);
    fallback_ = std::move(fallbacks.host);
    device_fallback_ = std::move(fallbacks.device);
    if (fallbacks.exchange) rails_ = std::make_unique<Rails>(communicator_, std::move(fallbacks.local));
    if (device_fallback_) device_watch_ = std::make_unique<DeviceWatch>(communicator_, [this] { abort_device(); });
  } catch (const Error& error) {
    fail_set_up(error);
  } catch (const std::exception& error) {
    fail_set_up(Error(ErrorKind::system, plain_text(error.what())));
  }
  watched->unwatch();
}

// The reason is rather another rank's end than what gloo says of it. If it is not, the others must hear of this one.
void Backend::fail_set_up(const Error& error) {
  try {
    const auto until = std::chrono::steady_clock::now() + kSetUpPatience;
    do {
      communicator_->check_peers("group set-up");
      std::this_thread::sleep_for(Milliseconds(1));
    } while (std::chrono::steady_clock::now() < until);
  } catch (const Error& cause) {
    communicator_->fail(cause);
  }
  communicator_->fail(Error(error.kind(), "group set-up: " + without_name(error.what())));
}

Backend::~Backend() {
  const GilRelease release;
  {
    const std::lock_guard<std::mutex> lock(live().mutex);
    live().backends.erase(this);
  }
  stop(why_it_leaves());
  if (birthplace_.here()) {
    device_watch_.reset();
    if (communicator_->failed()) drop_in_background(std::move(fallback_));
    // Not as a member's end, which holds the interpreter again: their threads may need it to drop their last work.
    fallback_.reset();
    rails_.reset();
    device_fallback_.reset();
    return;
  }
  // In the child of a fork the others' threads do not exist, and their destructors would wait for them.
  fallback_.release();
  device_watch_.release();
  rails_.release();
  device_fallback_.release();
}

void Backend::stop_all(const std::string& reason) {
  const GilRelease release;
  const std::lock_guard<std::mutex> lock(live().mutex);
  const std::string told = reason.empty() ? failure_known_here() : reason;
  for (Backend* backend : live().backends) backend->stop(told);
}

// The ranks of a new group are not connected yet, but many are in an earlier one.
void Backend::check_known_dead(const GroupOptions& fresh) {
  const std::lock_guard<std::mutex> lock(live().mutex);
  for (const Backend* backend : live().backends) {
    const std::vector<int>& theirs = backend->group_options_.job_ranks;
    for (const int dead : backend->communicator_->dead()) {
      if (static_cast<std::size_t>(dead) >= theirs.size()) continue;
      const auto found =
          std::find(fresh.job_ranks.begin(), fresh.job_ranks.end(), theirs[static_cast<std::size_t>(dead)]);
      if (found == fresh.job_ranks.end()) continue;
      PeerError error("group " + fresh.name + ": " + backend->communicator_->topology().who({dead}) +
                      " is gone, as group " + backend->group_options_.name +
                      " knows (its process ended, or its host is cut off), while this group was being set up");
      error.set_ranks({static_cast<int>(found - fresh.job_ranks.begin())});
      throw error;
    }
  }
}

void Backend::refuse_after_fork(const char* operation) const {
  if (!birthplace_.here())
    throw UsageError(std::string("smddp: ") + operation +
                     " in a forked child: DataLoader workers must not use the parent's process group");
}

// A script that ends its groups in a `finally` has no other chance to tell.
std::string Backend::why_it_leaves() const {
  if (!birthplace_.here() || shut_down_) return "";
  const std::string handling = interpreter_.handling();
  if (!handling.empty()) return "it left" + handling;
  const std::lock_guard<std::mutex> lock(live().mutex);
  return failure_known_here();
}

// A script that catches the error of one group and ends: ranks that wait for it in another one see it leave.
std::string Backend::failure_known_here() {
  for (const Backend* backend : live().backends) {
    try {
      if (backend->communicator_->failed()) backend->communicator_->check();
    } catch (const Error& error) {
      return "it left after group " + backend->group_options_.name + " had failed: " + without_name(error.what());
    }
  }
  return "";
}

void Backend::stop(const std::string& reason) {
  if (!birthplace_.here()) return;
  if (shut_down_.exchange(true)) return;
  if (!queue_.wait_idle(kLeavePatience))
    communicator_->abort(rank_name(getRank(), group_options_.job_ranks) + " left the group during " +
                         std::to_string(communicator_->sequence()) + "th operation" +
                         (reason.empty() ? "" : " (" + reason + ")"));
  queue_.drain();
  communicator_->leave(communicator_->failed() ? "" : reason);
  // What the fallback still waits for in a dead group would keep this process until its timeout.
  if (communicator_->failed() && fallback_) abort_of(*fallback_, 0);
  communicator_->write_stats();
}

void Backend::shutdown() {
  const GilRelease release;
  stop(why_it_leaves());
  if (!birthplace_.here()) return;
  // Of a dead group's operations some may still wait.
  if (communicator_->failed()) return;
  shutdown_of(*fallback_, 0);
  if (rails_) rails_->shutdown();
  if (device_fallback_) shutdown_of(*device_fallback_, 0);
}

void Backend::abort() {
  communicator_->abort("the process group was aborted by " + rank_name(getRank(), group_options_.job_ranks) +
                       interpreter_.handling());
  abort_of(*fallback_, 0);
  abort_device();
}

void Backend::abort_device() {
  if (rails_) rails_->abort();
  if (device_fallback_) abort_of(*device_fallback_, 0);
}

c10::intrusive_ptr<BackendBase::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<BackendBase::Options>(*options_);
}

void Backend::setTimeout(Milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "smddp: the timeout must be positive");
  options_->timeout = timeout;
}

ErrorType Backend::getError() { return communicator_->failed() ? ErrorType::COMM_ERROR : ErrorType::SUCCESS; }

std::string Backend::path() const { return communicator_->topology().describe(); }

c10::intrusive_ptr<BackendBase> Backend::other_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                     const c10::intrusive_ptr<BackendBase::Options>& options,
                                                     std::vector<int> job_ranks) {
  // torch asks once for each device of the group, with one store: as for the parent, one group serves them all.
  if (other_store_.lock() == store)
    if (auto made = other_group_.lock()) return made;
  GroupOptions group = group_options_;
  group.job_ranks = std::move(job_ranks);
  if (options) group.timeout = options->timeout;
  group.name += size == getSize() ? ":merged" : ":split";
  const c10::intrusive_ptr<BackendBase> made =
      c10::make_intrusive<Backend>(store, rank, size, std::move(group), interpreter_);
  other_store_ = store;
  other_group_ = made;
  return made;
}

c10::intrusive_ptr<BackendBase> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::vector<int>& ranks,
                                               const c10::intrusive_ptr<BackendBase::Options>& options) {
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return {};
  std::vector<int> job_ranks = ranks;
  for (int& rank : job_ranks)
    if (static_cast<std::size_t>(rank) < group_options_.job_ranks.size())
      rank = group_options_.job_ranks[static_cast<std::size_t>(rank)];
  return other_group(store, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()), options,
                     std::move(job_ranks));
}

c10::intrusive_ptr<BackendBase> Backend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                               const c10::intrusive_ptr<BackendBase::Options>& options, const int& rank,
                                               const int& size) {
  return other_group(store, rank, size, options, {});
}

void Backend::startCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  TORCH_CHECK(!coalescing_, "smddp: startCoalescing() within startCoalescing()");
  coalescing_ = true;
}

Backend::WorkPtr Backend::collect(WorkPtr work) {
  if (!coalescing_) return work;
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

Backend::WorkPtr Backend::endCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  TORCH_CHECK(coalescing_, "smddp: endCoalescing() without startCoalescing()");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(getRank(), std::exchange(coalesced_, {}));
}

}  // namespace smddp::torch_binding
