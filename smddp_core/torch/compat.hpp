// The differences between torch releases from 1.12 on, in one place.
#pragma once

#include <c10/util/Optional.h>
#include <torch/version.h>

#include <cstdint>
#include <string>
#include <vector>

#define SMDDP_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if SMDDP_TORCH_AT_LEAST(2, 0)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#elif SMDDP_TORCH_AT_LEAST(1, 13)
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#else
#include <c10d/PrefixStore.hpp>
#include <c10d/ProcessGroup.hpp>
#endif

namespace smddp::torch_binding {

// What a back end derives from. From 2.0 on, ProcessGroup is a dispatcher over the Backends of several devices.
#if SMDDP_TORCH_AT_LEAST(2, 0)
using BackendBase = c10d::Backend;
#else
using BackendBase = c10d::ProcessGroup;
#endif

#if SMDDP_TORCH_AT_LEAST(1, 13)
using WorkBase = c10d::Work;
#else
using WorkBase = c10d::ProcessGroup::Work;
#endif

#if SMDDP_TORCH_AT_LEAST(2, 4)
template <class T>
using Optional = std::optional<T>;
#else
template <class T>
using Optional = c10::optional<T>;
#endif

#if SMDDP_TORCH_AT_LEAST(2, 1)
constexpr c10d::OpType kCoalesced = c10d::OpType::COALESCED;
#else
constexpr c10d::OpType kCoalesced = c10d::OpType::UNKNOWN;
#endif

#if SMDDP_TORCH_AT_LEAST(2, 7)
using c10d::ErrorType;
#else
enum class ErrorType { SUCCESS = 0, TIMEOUT = 1, COMM_ERROR = 2, REMOTE_ERROR = 3 };
#endif

// Each function below comes twice: for a T that has the member, and for one that has not. 0 prefers the first.

/// Whether the caller waits at once. Releases before 2.2 do not say, and all-reduce and barrier only do from 2.8 on.
template <class Opts>
auto is_synchronous(const Opts& opts, int) -> decltype(!opts.asyncOp) {
  return !opts.asyncOp;
}
template <class Opts>
bool is_synchronous(const Opts&, long) {
  return false;
}

/// The kind of a reduction: an enumeration, wrapped in a class from 1.13 on.
template <class Op>
auto kind_of(const Op& op, int) -> decltype(op.op_) {
  return op.op_;
}
template <class Op>
Op kind_of(const Op& op, long) {
  return op;
}

/// The number of an operation in its group (2.1).
template <class Other>
auto sequence_of(const Other& work, int) -> decltype(work.getSequencenumber()) {
  return work.getSequencenumber();
}
template <class Other>
std::uint64_t sequence_of(const Other&, long) {
  return 0;
}

/// The name under which torch knows a group (2.9).
template <class Opts>
auto set_group_name(Opts& opts, const std::string& name, int) -> decltype(opts.group_name, void()) {
  opts.group_name = name;
}
template <class Opts>
void set_group_name(Opts&, const std::string&, long) {}

/// A second connection to a store (2.8). Before, nothing asks for one.
template <class Other>
auto clone_of(Other& store, int) -> decltype(store.clone()) {
  return store.clone();
}
template <class Other>
c10::intrusive_ptr<Other> clone_of(Other&, long) {
  return {};
}

/// Abort and shutdown of another back end (2.7). Before, its operations end by their own timeouts.
template <class Other>
auto abort_of(Other& other, int) -> decltype(other.abort()) {
  other.abort();
}
template <class Other>
void abort_of(Other&, long) {}
template <class Other>
auto shutdown_of(Other& other, int) -> decltype(other.shutdown()) {
  other.shutdown();
}
template <class Other>
void shutdown_of(Other&, long) {}

}  // namespace smddp::torch_binding
