#include "smddp/communicator.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "bootstrap.hpp"
#include "delegated_recorder.hpp"
#include "memory.hpp"
#include "report.hpp"
#include "runtime/birthplace.hpp"
#include "smddp/errors.hpp"
#include "table.hpp"

namespace smddp {
namespace {

// Before rank 0 makes an entry for each that it expects: of 2^31 - 1 it had not made all after 20 s, with 1 s to meet.
void require_place(int rank, int size) {
  if (size < 1 || size > kMostRanks)
    throw UsageError("a group of " + std::to_string(size) + " ranks: expected 1 to " + std::to_string(kMostRanks));
  if (rank < 0 || rank >= size)
    throw UsageError("rank " + std::to_string(rank) + " of " + std::to_string(size) + ": expected 0 to " +
                     std::to_string(size - 1));
}

}  // namespace

class Communicator::Impl {
 public:
  Impl(Store& store, const CommunicatorOptions& options)
      : options_(options), recorder_(options.env.flight_recorder), delegated_(options.env.flight_recorder) {
    require_place(options.rank, options.size);
    print_unknown_settings(options.rank);
    if (options.size == 1 && !options.refusal.empty()) throw UsageError(options.refusal);
    if (options.size > 1) {
      links_ = bootstrap(store, options);
    } else {
      links_.topology = Topology::from({RankInfo{"alone", "127.0.0.1", 0, host_name(), wire_version()}}, 0, false);
      links_.env = options.env;
      const Nonce nonce = make_nonce();
      links_.id = std::string(nonce.begin(), nonce.end());
    }
    if (links_.env.info) print_info(options.name, links_.topology, links_.env);
  }

  ~Impl() {
    if (birthplace_.here()) {
      dump_unseen_failure();
      leave("");
      write_stats();
      return;
    }
    // In the child of a fork the connections and their locks are the parent's: touch nothing.
    links_.tier.release();
    links_.wire.release();
    links_.control.release();
  }

  void set_blocking(bool blocking) { recorder_.set_exposed(blocking); }

  std::uint64_t issued(const PeerMessage& message) {
    return alone() || !birthplace_.here() ? 0 : links_.control->issue(message);
  }
  void issued_from_any() {
    if (!alone() && birthplace_.here()) links_.control->issue_from_any();
  }
  void awaits(const PeerMessage& message) {
    if (!alone() && birthplace_.here()) links_.control->await(message);
  }
  void stops_awaiting(const PeerMessage& message) {
    if (!alone() && birthplace_.here()) links_.control->stop_awaiting(message);
  }

  bool alone() const { return options_.size == 1; }
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  /// Runs `body(tier, op)` with the next sequence number. Its failure ends the group, here and, by notice, elsewhere.
  template <class Body>
  void run(OpHeader header, std::chrono::milliseconds timeout, Body body, Residual* residual = nullptr) {
    if (!birthplace_.here())
      throw UsageError(std::string(name_of(header.kind)) +
                       " in a forked child: DataLoader workers must not use the parent's process group");
    if (timeout.count() <= 0) throw UsageError("a timeout must be positive");
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_cause_) std::rethrow_exception(first_cause_);
    header.sequence = ++sequence_;
    const auto start = Deadline::Clock::now();
    const bool ours = header.delegated == 0;
    if (ours) recorder_.begin(header, start);
    if (!alone()) {
      try {
        links_.control->check_now_and_then(start);
        body(*links_.tier, Op{header, Deadline(start, timeout), links_.env.wire_error_feedback ? residual : nullptr,
                              &links_.topology});
      } catch (const Error& error) {
        fail(ours, error.kind(), error.what(), error.ranks());
      } catch (const std::exception& error) {
        fail(ours, ErrorKind::system, error.what(), {});
      }
    }
    if (ours) recorder_.end(false, Deadline::Clock::now());
    if (!alone()) links_.control->moved_on();
  }

  void abort(const std::string& reason) {
    if (!birthplace_.here()) return;
    if (!alone()) return links_.control->raise(ErrorKind::aborted, reason);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_cause_) remember(ErrorKind::aborted, reason);
  }

  void check() const {
    if (!birthplace_.here()) throw UsageError("the process group is that of the process that this one was forked from");
    if (!alone()) return links_.control->check();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_cause_) std::rethrow_exception(first_cause_);
  }
  void check_peers(const std::string& title) const {
    check();
    if (!alone()) require_none(title, links_.control->lost());
  }
  std::vector<int> dead() const { return alone() || !birthplace_.here() ? std::vector<int>() : links_.control->dead(); }
  void check_others(const std::string& title) const {
    check();
    if (!alone()) require_none(title, links_.control->all_gone(size() - 1));
  }
  void check_alive(const std::string& title, bool at_once) const {
    check();
    if (!alone()) require_none(title, links_.control->gone(at_once));
  }
  std::string waiting_for() const {
    if (alone() || !links_.control->waiting()) return "";
    const Awaited awaited = links_.control->awaited();
    return awaited.sequence == sequence_ && !awaited.ranks.empty() ? links_.topology.who(awaited.ranks) : "";
  }
  void set_waiting_elsewhere(bool waiting) {
    if (alone() || !birthplace_.here()) return;
    if (waiting)
      links_.control->set_awaited(sequence_, {});
    else
      links_.control->moved_on();
  }
  std::vector<int> silent() { return alone() || !birthplace_.here() ? std::vector<int>() : links_.control->silent(); }
  const std::string& id() const { return links_.id; }
  void leave(const std::string& reason) {
    if (!alone() && birthplace_.here() && !left_.exchange(true)) links_.control->leave(sequence_, reason);
  }
  [[noreturn]] void give_up(const Error& cause) {
    if (!birthplace_.here()) throw_error(cause.kind(), cause.what());
    if (!alone()) links_.control->raise(cause.kind(), cause.what());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_cause_) remember(cause.kind(), cause.what());
    std::rethrow_exception(first_cause_);
  }
  bool failed() const {
    if (!alone()) return links_.control->raised();
    const std::lock_guard<std::mutex> lock(mutex_);
    return first_cause_ != nullptr;
  }
  std::uint64_t sequence() const { return sequence_; }
  const Topology& topology() const { return links_.topology; }
  const Env& env() const { return links_.env; }
  bool keeps_residuals(std::size_t bytes) const {
    const Env& env = links_.env;
    return links_.wire && env.wire_error_feedback && env.wire_dtype != DType::f32 && bytes >= env.wire_min_bytes;
  }

  std::string stats() const { return stats_json(source()); }
  std::string flight_recorder() const { return flight_recorder_lines(source()); }
  void add_exposed(OpKind kind, std::chrono::nanoseconds time) { recorder_.add_exposed(kind, time); }
  DelegatedRecorder& delegated() { return delegated_; }
  void write_stats() {
    if (!stats_written_.exchange(true)) smddp::write_stats(links_.env, source());
  }

 private:
  void require_none(const std::string& title, const std::optional<Loss>& lost) const {
    if (!lost) return;
    PeerError error(title + ": " + links_.topology.who({lost->rank}) + " " + lost->how);
    error.set_ranks({lost->rank});
    throw error;
  }

  ReportSource source() const {
    if (alone()) {
      const std::lock_guard<std::mutex> lock(own_reason_mutex_);
      return {options_.name, links_.topology, recorder_, delegated_, own_reason_, {}};
    }
    // What ended the group may have come while nobody called anything; to a forked child it is not addressed.
    if (birthplace_.here()) links_.control->refresh();
    return {options_.name, links_.topology, recorder_, delegated_, links_.control->reason(), links_.control->awaited()};
  }

  // The peers hear it first: writing files may take its time.
  [[noreturn]] void fail(bool ours, ErrorKind kind, const std::string& message, const std::vector<int>& ranks) {
    links_.control->raise(kind, message);
    if (links_.wire) links_.wire->abandon();
    if (!ranks.empty()) links_.control->set_awaited(sequence_, ranks);
    if (ours) recorder_.end(true, Deadline::Clock::now());
    remember(kind, message);
    std::rethrow_exception(first_cause_);
  }

  // The first cause, with mutex_ held: what every later call throws.
  void remember(ErrorKind kind, const std::string& message) {
    {
      const std::lock_guard<std::mutex> lock(own_reason_mutex_);
      own_reason_ = with_name(message);
    }
    try {
      throw_error(kind, message + dump_flight_recorder(links_.env, source()));
    } catch (...) {
      first_cause_ = std::current_exception();
    }
  }

  // A group that another rank ended, which was not called since.
  void dump_unseen_failure() {
    if (alone()) return;
    const ReportSource last = source();
    if (!first_cause_ && !last.error.empty()) dump_flight_recorder(links_.env, last);
  }

  CommunicatorOptions options_;
  const Birthplace birthplace_;
  Links links_;
  FlightRecorder recorder_;
  DelegatedRecorder delegated_;
  mutable std::mutex mutex_;
  std::exception_ptr first_cause_;
  mutable std::mutex own_reason_mutex_;
  std::string own_reason_;  // of a group without peers
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<bool> stats_written_{false};
  std::atomic<bool> left_{false};
};

namespace {

OpHeader header_of(OpKind kind, std::size_t bytes, DType dtype, ReduceOp reduce = ReduceOp::none) {
  OpHeader header;
  header.kind = kind;
  header.bytes = bytes;
  header.dtype = dtype;
  header.reduce = reduce;
  return header;
}

// In the tags of operations on rails.
constexpr std::uint32_t kBetweenHosts = 0x40000000U;

// Complex numbers are added as what they consist of.
Reduction reduction_of(DType dtype, ReduceOp op, int ranks) {
  if (!can_reduce(dtype, op)) throw UsageError(std::string("cannot reduce ") + name_of(dtype) + " with " + name_of(op));
  return {op, component_of(dtype), component_of(dtype), op == ReduceOp::avg ? ranks : 1};
}

}  // namespace

Communicator::Communicator(Store& store, const CommunicatorOptions& options)
    : impl_(std::make_unique<Impl>(store, options)) {}

Communicator::~Communicator() = default;

void Communicator::barrier(Timeout timeout) {
  impl_->run(header_of(OpKind::barrier, 0, DType::bytes), timeout, [](Tier& tier, const Op& op) { tier.barrier(op); });
}

void Communicator::broadcast(void* data, std::size_t bytes, int root, Timeout timeout, DType dtype, std::uint32_t tag) {
  if (root < 0 || root >= impl_->size())
    throw UsageError("broadcast from rank " + std::to_string(root) + " in a group of " + std::to_string(impl_->size()));
  bytes_of(bytes, 1, 1, "broadcast");
  OpHeader header = header_of(OpKind::broadcast, bytes, dtype);
  header.root = root;
  header.tag = tag;
  impl_->run(header, timeout, [&](Tier& tier, const Op& op) { tier.broadcast(op, data, bytes, root); });
}

void Communicator::all_reduce(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op, Timeout timeout,
                              Residual* residual, int root, std::uint32_t tag) {
  const Reduction reduction = reduction_of(dtype, op, impl_->size());
  const std::size_t bytes = bytes_of(count, size_of(dtype), 1, "all_reduce");
  OpHeader header = header_of(OpKind::all_reduce, bytes, dtype, op);
  header.root = root;
  header.tag = tag;
  if (impl_->alone()) copy_bytes(out, in, bytes);
  impl_->run(
      header, timeout,
      [&](Tier& tier, const Op& running) {
        tier.all_reduce(running, in, out, bytes / size_of(reduction.in), reduction);
      },
      residual);
}

void Communicator::all_reduce_between_hosts(void* data, std::size_t count, DType dtype, ReduceOp op, Timeout timeout,
                                            Residual* residual, std::uint32_t tag) {
  const Topology& topology = impl_->topology();
  if (!topology.has_rails()) throw UsageError("all_reduce between hosts in a group that has no rails");
  const Reduction reduction = reduction_of(dtype, op, topology.host_count());
  const std::size_t bytes = bytes_of(count, size_of(dtype), 1, "all_reduce");
  OpHeader header = header_of(OpKind::all_reduce, bytes, dtype, op);
  // Not the sum of a rank that calls the other one.
  header.tag = tag ^ kBetweenHosts;
  impl_->run(
      header, timeout,
      [&](Tier& tier, const Op& running) {
        tier.between_hosts().all_reduce(running, data, data, bytes / size_of(reduction.in), reduction);
      },
      residual);
}

void Communicator::all_gather(const void* in, const std::vector<void*>& outs, std::size_t bytes, Timeout timeout,
                              DType dtype, std::uint32_t tag) {
  if (outs.size() != static_cast<std::size_t>(impl_->size()))
    throw UsageError("all_gather into " + std::to_string(outs.size()) + " outputs in a group of " +
                     std::to_string(impl_->size()));
  bytes_of(bytes, 1, impl_->size(), "all_gather");
  OpHeader header = header_of(OpKind::all_gather, bytes, dtype);
  header.tag = tag;
  if (impl_->alone()) copy_bytes(outs[0], in, bytes);
  std::vector<MutableBlock> blocks;
  blocks.reserve(outs.size());
  for (void* out : outs) blocks.push_back({out, bytes});
  impl_->run(header, timeout, [&](Tier& tier, const Op& op) { tier.all_gather(op, in, blocks); });
}

void Communicator::reduce_scatter(const std::vector<const void*>& ins, void* out, std::size_t count, DType dtype,
                                  ReduceOp op, Timeout timeout, Residual* residual) {
  if (ins.size() != static_cast<std::size_t>(impl_->size()))
    throw UsageError("reduce_scatter of " + std::to_string(ins.size()) + " inputs in a group of " +
                     std::to_string(impl_->size()));
  const Reduction reduction = reduction_of(dtype, op, impl_->size());
  const std::size_t bytes = bytes_of(count, size_of(dtype), impl_->size(), "reduce_scatter");
  if (impl_->alone()) copy_bytes(out, ins[0], bytes);
  std::vector<Block> blocks;
  blocks.reserve(ins.size());
  for (const void* in : ins) blocks.push_back({in, bytes / size_of(reduction.in)});
  impl_->run(
      header_of(OpKind::reduce_scatter, bytes, dtype, op), timeout,
      [&](Tier& tier, const Op& running) { tier.reduce_scatter(running, blocks, out, reduction); }, residual);
}

// The ranks' cells are gathered as any data is: whoever is missing is missed as in an operation of ours.
void Communicator::agree(const DelegatedCall& call, std::uint64_t record, Timeout timeout) {
  const int ranks = impl_->size();
  const std::size_t bytes = cell_bytes(call.kind, ranks);
  OpHeader header = header_of(call.kind, bytes, DType::bytes);
  header.delegated = 1;
  std::vector<std::byte> cells(bytes * static_cast<std::size_t>(ranks));
  std::vector<MutableBlock> blocks;
  for (int r = 0; r < ranks; ++r) blocks.push_back({&cells[bytes * static_cast<std::size_t>(r)], bytes});
  std::byte* const mine = &cells[bytes * static_cast<std::size_t>(impl_->rank())];
  write_cell(call, ranks, mine);
  impl_->run(header, timeout, [&](Tier& tier, const Op& op) {
    impl_->delegated().number(record, op.header.sequence);
    tier.all_gather(op, mine, blocks);
    compare_cells(call.kind, cells.data(), ranks, impl_->topology().job_ranks);
  });
}

void Communicator::abort(const std::string& reason) { impl_->abort(reason); }
void Communicator::check() const { impl_->check(); }
bool Communicator::failed() const { return impl_->failed(); }
std::string Communicator::stats() const { return impl_->stats(); }
std::string Communicator::flight_recorder() const { return impl_->flight_recorder(); }
void Communicator::add_exposed(OpKind kind, std::chrono::nanoseconds time) { impl_->add_exposed(kind, time); }
void Communicator::check_peers(const std::string& title) const { impl_->check_peers(title); }
std::vector<int> Communicator::dead() const { return impl_->dead(); }
void Communicator::check_others(const std::string& title) const { impl_->check_others(title); }
void Communicator::check_alive(const std::string& title, bool at_once) const { impl_->check_alive(title, at_once); }
void Communicator::set_waiting_elsewhere(bool waiting) { impl_->set_waiting_elsewhere(waiting); }
std::vector<int> Communicator::silent() { return impl_->silent(); }
std::string Communicator::waiting_for() const { return impl_->waiting_for(); }
const std::string& Communicator::id() const { return impl_->id(); }
void Communicator::fail(const Error& cause) { impl_->give_up(cause); }
void Communicator::leave(const std::string& reason) { impl_->leave(reason); }
void Communicator::set_blocking(bool blocking) { impl_->set_blocking(blocking); }
std::uint64_t Communicator::issued(const PeerMessage& message) { return impl_->issued(message); }
void Communicator::issued_from_any() { impl_->issued_from_any(); }
void Communicator::awaits(const PeerMessage& message) { impl_->awaits(message); }
void Communicator::stops_awaiting(const PeerMessage& message) { impl_->stops_awaiting(message); }
std::uint64_t Communicator::began(const std::string& name, int peer, std::uint64_t bytes) {
  DelegatedRecord record;
  record.name = name;
  record.peer = peer;
  record.bytes = bytes;
  return impl_->delegated().begin(std::move(record));
}
void Communicator::ended(std::uint64_t id, bool failed) { impl_->delegated().end(id, failed); }
void Communicator::add_exposed(const std::string& name, std::chrono::nanoseconds time) {
  impl_->delegated().add_exposed(name, time);
}
void Communicator::write_stats() { impl_->write_stats(); }
std::uint64_t Communicator::sequence() const { return impl_->sequence(); }
bool Communicator::keeps_residuals(std::size_t bytes) const { return impl_->keeps_residuals(bytes); }
const Topology& Communicator::topology() const { return impl_->topology(); }
const Env& Communicator::env() const { return impl_->env(); }

}  // namespace smddp
