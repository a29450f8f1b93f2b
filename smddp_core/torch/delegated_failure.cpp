#include "delegated_failure.hpp"

#include <chrono>
#include <thread>
#include <vector>

#include "smddp/errors.hpp"

namespace smddp::torch_binding {
namespace {

// The fallback notices a closed connection at about the time the control plane does; give that one as long to say why.
// Where another operation has timed out and closed them, that takes longer: see the next, and Communicator::silent().
constexpr std::chrono::milliseconds kCausePatience{1500};

// Who runs out of time itself lets operations of ours, which end at the same time, speak first: they know more.
constexpr std::chrono::milliseconds kTimeoutPatience{500};

bool has(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

// What gloo says of all other operations once one has timed out.
bool followed_timeout(const std::string& text) { return has(text, "timeout caused pair closure"); }
bool timed_out(const std::string& text) { return has(text, "imed out") || followed_timeout(text); }

bool of_transport(const std::string& text) {
  return has(text, "gloo/transport") || has(text, "Connection") || timed_out(text);
}

void raise_cause(const Delegated& operation, const Communicator& communicator, bool in_time,
                 std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  do {
    communicator.check_alive(operation.name, in_time);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() < until);
  // One that left in good order, then.
  if (in_time) communicator.check_peers(operation.name);
}

[[noreturn]] void end_group(const std::string& text, const Delegated& operation, Communicator& communicator) {
  const bool in_time = !timed_out(text);
  std::vector<int> missing;
  if (operation.peer >= 0) missing.push_back(operation.peer);
  try {
    raise_cause(operation, communicator, in_time,
                in_time || followed_timeout(text) ? kCausePatience : kTimeoutPatience);
    if (!in_time && missing.empty()) missing = communicator.silent();
  } catch (const Error& cause) {
    communicator.fail(cause);
  }
  if (in_time && operation.peer >= 0) {
    PeerError error(operation.name + ": " + communicator.topology().who({operation.peer}) +
                    " cannot be reached any more (gloo: " + plain_text(text) + ")");
    error.set_ranks({operation.peer});
    communicator.fail(error);
  }
  if (in_time) communicator.fail(Error(ErrorKind::system, operation.name + ": " + plain_text(text)));
  const std::string who = missing.empty() ? "a rank" : communicator.topology().who(missing);
  TimeoutError error(operation.name + ": Timed out waiting for " + who + " (gloo: " + plain_text(text) + ")");
  error.set_ranks(missing);
  communicator.fail(error);
}

}  // namespace

std::string plain_text(const std::string& text) {
  const std::size_t end = text.find('\n');
  const std::size_t bracket = text.find("] ");
  const bool located = !text.empty() && text[0] == '[' && bracket < end;
  const std::size_t begin = located ? bracket + 2 : 0;
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

void rethrow_as_ours(const std::exception_ptr& theirs, const Delegated& operation, Communicator& communicator) {
  std::string text;
  try {
    std::rethrow_exception(theirs);
  } catch (const Error& ours) {
    // The group has died, or a rank has.
    communicator.fail(ours);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    throw;
  }
  if (of_transport(text)) end_group(text, operation, communicator);
  communicator.check();
  std::rethrow_exception(theirs);
}

}  // namespace smddp::torch_binding
