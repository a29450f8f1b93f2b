// Every environment variable the library reads, each once, with its meaning and default.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace smddp {

/// Settings of a process. All ranks of a job must have the same values except host_id and the interface names.
struct Env {
  /// SMDDP_TRANSPORT: `auto` (default: shared memory inside a host, TCP between hosts) or `tcp` (TCP everywhere).
  bool tcp_only = false;

  /// SMDDP_HOST_ID: overrides the identity of the host. Ranks with one identity share memory. For tests that play
  /// several hosts on one machine. Default: boot id and device number of /dev/shm.
  std::string host_id;

  /// SMDDP_SHM_CHUNK_BYTES: size of one of the two slots a rank has in the host's segment. Default 1 MiB, about an L2
  /// cache: 64 KiB and 8 MiB were both 1.5 to 2 times slower at 128 MiB. At least 4 KiB. The segment takes
  /// 2 x ranks x this from /dev/shm for each group.
  std::size_t shm_chunk_bytes = std::size_t{1} << 20;

  /// SMDDP_ONE_SHOT_BYTES: an all-reduce up to this size is summed by every rank alone, which saves one of two waits.
  /// Default 32 KiB; bounded by the chunk.
  std::size_t one_shot_bytes = std::size_t{32} << 10;

  /// SMDDP_NET_BLOCK_BYTES: a message is exchanged between hosts in blocks of this size, which bounds the memory taken
  /// for incoming shards. Default 8 MiB.
  std::size_t net_block_bytes = std::size_t{8} << 20;

  /// SMDDP_INIT_TIMEOUT: seconds all ranks have to find each other; default 300, never more than the group's timeout.
  std::chrono::milliseconds init_timeout{300'000};

  /// SMDDP_DEBUG: `INFO` prints version, topology and chosen path to stderr once a group. Default: silent.
  bool info = false;

  /// Reads the process environment.
  /// @throws UsageError naming the variable, its value and what is accepted.
  static Env from_process();
};

}  // namespace smddp
