#include "expendable.hpp"

#include <unistd.h>

#include <exception>
#include <mutex>

namespace smddp::torch_binding {
namespace {

thread_local bool expendable = false;
std::terminate_handler others = nullptr;

void terminate() {
  while (expendable) ::pause();
  others();
}

}  // namespace

void make_expendable() {
  static std::once_flag once;
  std::call_once(once, [] { others = std::set_terminate(terminate); });
  expendable = true;
}

}  // namespace smddp::torch_binding
