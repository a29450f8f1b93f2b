// How an operation of the core gets its place in the queue: Backend's templates. They are small, as each operation has
// its own; what they all do is in issue.cpp.
#pragma once

#include <functional>
#include <utility>

#include "backend.hpp"
#include "tensors.hpp"

namespace smddp::torch_binding {

template <class Opts>
Backend::Issue Backend::issue_of(c10d::OpType op, const char* title, TensorList inputs, TensorList outputs,
                                 const Opts& opts) const {
  // Unset is negative in some releases and zero in others.
  const auto timeout = opts.timeout.count() > 0 ? opts.timeout : options_->timeout;
  return {op, title, inputs, outputs, 0, is_synchronous(opts, 0), timeout, common_device(outputs)};
}

template <class Call>
Backend::WorkPtr Backend::issue(const Issue& what, Call call) {
  // A reference to it costs no memory: most synchronous calls are small.
  Turn turn = take_turn(what);
  return turn.is_now ? carry_out_now(what, turn, std::ref(call)) : post(what, turn, std::move(call));
}

}  // namespace smddp::torch_binding
