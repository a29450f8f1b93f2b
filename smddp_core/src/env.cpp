#include "smddp/env.hpp"

#include <cerrno>
#include <cstdlib>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

long long number(const char* name, long long fallback, long long least) {
  const std::string text = text_of(name);
  if (text.empty()) return fallback;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (errno || *end || value < least)
    throw UsageError(std::string("smddp: ") + name + "=" + text + ": expected a whole number of at least " +
                     std::to_string(least));
  return value;
}

}  // namespace

Env Env::from_process() {
  Env env;
  const std::string transport = text_of("SMDDP_TRANSPORT");
  if (!transport.empty() && transport != "auto" && transport != "tcp")
    throw UsageError("smddp: SMDDP_TRANSPORT=" + transport + ": expected auto or tcp");
  env.tcp_only = transport == "tcp";
  env.host_id = text_of("SMDDP_HOST_ID");
  if (env.host_id.find_first_of(" \n\t") != std::string::npos)
    throw UsageError("smddp: SMDDP_HOST_ID must not contain white space");
  const auto size = [](const char* name, std::size_t fallback, long long least) {
    return static_cast<std::size_t>(number(name, static_cast<long long>(fallback), least));
  };
  env.shm_chunk_bytes = size("SMDDP_SHM_CHUNK_BYTES", env.shm_chunk_bytes, 4096);
  env.one_shot_bytes = size("SMDDP_ONE_SHOT_BYTES", env.one_shot_bytes, 0);
  env.net_block_bytes = size("SMDDP_NET_BLOCK_BYTES", env.net_block_bytes, 4096);
  env.init_timeout = std::chrono::seconds(number("SMDDP_INIT_TIMEOUT", env.init_timeout.count() / 1000, 1));
  env.info = text_of("SMDDP_DEBUG") == "INFO";
  return env;
}

}  // namespace smddp
