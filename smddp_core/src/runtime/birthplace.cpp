#include "runtime/birthplace.hpp"

#include <pthread.h>

#include "smddp/errors.hpp"

namespace smddp {

std::atomic<std::uint64_t> Birthplace::forks{0};

Birthplace::Birthplace() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  if (registered != 0) throw_system("pthread_atfork", registered);
  forks_ = forks.load();
}

}  // namespace smddp
