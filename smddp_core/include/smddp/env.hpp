// Every setting of the library, each once, with its meaning and default.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "smddp/errors.hpp"
#include "smddp/types.hpp"

namespace smddp {

/// Settings as text, by the name of their environment variable.
using Settings = std::map<std::string, std::string>;

/// What carries data between hosts.
enum class Net { automatic, tcp, fabric };

/// Whether something is done that the library can decide by itself.
enum class When { automatic, always, never };

/// Settings of a process, and, once a group is connected, of the group: those marked [group] are rank 0's on every
/// rank, whatever the others have. The rest are each rank's own.
///
/// A new setting takes a member here and a row in env.cpp; it then travels to all ranks by itself.
struct Env {
  /// SMDDP_TRANSPORT [group]: `auto` (default: shared memory inside a host, the network between hosts) or `tcp`
  /// (TCP everywhere; with SMDDP_NET=fabric, the fabric everywhere).
  bool tcp_only = false;

  /// SMDDP_NET [group]: what carries data between hosts: `tcp`, `fabric` (libfabric; the group fails to start where a
  /// rank cannot use it) or `auto` (default: the fabric if every rank's host has an EFA device and the library, else
  /// TCP).
  Net net = Net::automatic;

  /// SMDDP_FABRIC_PROVIDER [group]: libfabric's provider, `efa` (default), `tcp;ofi_rxm`, `verbs;ofi_rxm` ...
  std::string fabric_provider = "efa";

  /// SMDDP_FABRIC_SEGMENT_BYTES [group]: data goes over the fabric in messages of at most this size. Default 512 KiB.
  std::size_t fabric_segment_bytes = std::size_t{512} << 10;

  /// SMDDP_HOST_ID: overrides the identity of the host. Ranks with one identity share memory. For tests that play
  /// several hosts on one machine. Default: boot id and device number of /dev/shm.
  std::string host_id;

  /// SMDDP_SHM_CHUNK_BYTES [group]: most that a rank writes to shared memory at a time. 0 (default): the L2 cache of
  /// the host's first rank, from 64 KiB to 1 MiB, less where a host has more than 8 ranks (64 KiB and 8 MiB were
  /// both 1.5 to 2 times slower than 1 MiB at 128 MiB). Else at least 4 KiB. A group takes 4.5 x ranks x this of a
  /// host's memory.
  std::size_t shm_chunk_bytes = 0;

  /// SMDDP_SHM_STORES [group]: how shared memory is written: `cached`, `streaming` (past the caches) or `auto` (empty
  /// here): each host measures both when the group is made; operations of 64 KiB and more go on finding out.
  std::string shm_stores;

  /// SMDDP_SHM_DIRECT [group]: whether ranks of a host read messages out of one another's memory (process_vm_readv),
  /// one copy instead of two: `auto` (default: sizes for which that is faster, where the system allows it, every rank
  /// has a core and trials say so), `always` (any size, wherever it is allowed) or `never`.
  When shm_direct = When::automatic;

  /// SMDDP_SHM_MAILBOXES [group]: whether messages inside a host go through memory that two ranks write in turns, so
  /// that its lines change caches half as often: `auto` (default: where that turns out to be faster, and always where
  /// ranks share cores; not where so many ranks share a chunk that mailboxes are small), `always` or `never`.
  When shm_mailboxes = When::automatic;

  /// SMDDP_ONE_SHOT_BYTES [group]: an all-reduce up to this size is summed by every rank alone, which saves one of two
  /// waits. Default 32 KiB; bounded by the chunk.
  std::size_t one_shot_bytes = std::size_t{32} << 10;

  /// SMDDP_NET_BLOCK_BYTES [group]: a message is exchanged between hosts in blocks of at most this size, which bounds
  /// the memory taken for incoming shards (three blocks, 6 MiB if that is more). Default 4 MiB.
  std::size_t net_block_bytes = std::size_t{4} << 20;

  /// SMDDP_NET_SHARD_BYTES [group]: of a block that is summed, each rank sums at most this much: blocks are no larger
  /// than this times the ranks between which it goes. Default 256 KiB, so that a few blocks stay in the caches.
  std::size_t net_shard_bytes = std::size_t{256} << 10;

  /// SMDDP_CPUS: cores that the communication threads of this process run on, such as `6-7,14`. Default: any; through
  /// torch, those that training does not need, if the process may use more.
  std::string cpus;

  /// SMDDP_NET_PIECE_BYTES [group]: blocks travel and are summed in pieces of this size, so that sums and results are
  /// under way before all of a block has arrived. Default 256 KiB: smaller costs bookkeeping, larger leaves the cache.
  std::size_t net_piece_bytes = std::size_t{256} << 10;

  /// SMDDP_NET_ONE_SHOT_BYTES [group]: between n hosts an all-reduce of B bytes goes in one step instead of two as long
  /// as the (n-1)(n-2)/n B bytes that this sends more are no more than this. Default 16 KiB, what 1 Gbit/s moves in the
  /// time of a step (0.1 ms).
  std::size_t net_one_shot_bytes = std::size_t{16} << 10;

  /// SMDDP_NET_TRY_BYTES [group]: where one step sends more than that, but no more than this, an all-reduce finds out
  /// by itself which is faster. Default 1 MiB; 0: two steps without trials.
  std::size_t net_try_bytes = std::size_t{1} << 20;

  /// SMDDP_NET_RELAY [group]: whether barriers and small operations between n hosts go by way of other hosts, in
  /// log2 n messages of each rank, one after another, instead of n-1 at once: `auto` (default: where "hosts" are
  /// containers of one machine that has fewer cores than ranks, so that the work for all messages counts instead of
  /// the way of one), `always` or `never`. The bits are the same.
  When net_relay = When::automatic;

  /// SMDDP_GPU_EXCHANGE [group]: whether all-reduces of tensors on GPUs cross between hosts through host memory and the
  /// exchange that CPU tensors take (inside a host NCCL sums), or all of it is NCCL's: `auto` (default: the exchange,
  /// but NCCL where any host has a network that reads GPUs' memory), `always` or `never`. Through torch only.
  When gpu_exchange = When::automatic;

  /// SMDDP_MIN_SHARD_BYTES [group]: a block is cut for fewer ranks than there are, if shards would be smaller.
  /// Default 4 KiB.
  std::size_t min_shard_bytes = 4096;

  /// SMDDP_STREAMS [group]: TCP connections between two ranks, for networks that limit what one may carry (5 Gbit/s on
  /// EC2 outside a placement group). Default 1.
  int streams = 1;

  /// SMDDP_SOCKET_BUFFER_BYTES [group]: send and receive buffer of each data connection. Default 0: as the system
  /// tunes them itself, which is best where its limits (net.ipv4.tcp_wmem, tcp_rmem) allow bandwidth times delay.
  std::size_t socket_buffer_bytes = 0;

  /// SMDDP_WIRE_DTYPE [group]: type in which float32 (and complex64) sums and averages travel between hosts: `float32`
  /// (default), `bfloat16` or `float16`. They are summed in float32 whatever this is. See docs/smddp-algorithms.md for
  /// the error.
  DType wire_dtype = DType::f32;

  /// SMDDP_WIRE_MIN_BYTES [group]: messages below this size always travel as they are (metrics, norms). Default 64 KiB.
  std::size_t wire_min_bytes = std::size_t{64} << 10;

  /// SMDDP_WIRE_ERROR_FEEDBACK [group]: 1 (default): what a 16-bit format rounds off is added to the same tensor's next
  /// sum; 0: it is lost.
  bool wire_error_feedback = true;

  /// SMDDP_INIT_TIMEOUT: seconds all ranks have to find each other; default 300, never more than the group's timeout.
  std::chrono::milliseconds init_timeout{300'000};

  /// SMDDP_LINK_TIMEOUT [group]: seconds a host may be silent on the network (nothing acknowledged, no answer to
  /// probes) before its ranks count as lost. Default 30.
  std::chrono::milliseconds link_timeout{30'000};

  /// SMDDP_CHECKSUM [group]: `1` sends a CRC32C after every piece of data between hosts and compares it. Default: 0.
  bool checksum = false;

  /// SMDDP_JOB_SECRET, or the first line of the file SMDDP_JOB_SECRET_FILE names: only ranks with the same one can
  /// join. Default: none; then whoever can read the job's store can join.
  std::string job_secret;
  std::string job_secret_file;

  /// SMDDP_FLIGHT_RECORDER: how many operations of each group are remembered; default 256, about 56 bytes each.
  std::size_t flight_recorder = 256;

  /// SMDDP_FLIGHT_RECORDER_DIR: where each rank writes them, as JSON lines, when its group fails. Default: nowhere.
  std::string flight_recorder_dir;

  /// SMDDP_STATS_FILE: where each rank appends a JSON line with its counters when a group ends; an existing folder gets
  /// one file a process. Default: nowhere.
  std::string stats_file;

  /// SMDDP_DEBUG [group]: `INFO` prints version, topology and chosen path to stderr once a group. Default: silent.
  bool info = false;

  /// The process environment over `given` (what the program itself chose) over the defaults.
  /// Reads the secret's file.
  /// @throws UsageError naming the setting, its value, where it is from and what is accepted.
  static Env from_process(const Settings& given = {});

  /// The same for a rank that others wait for: what is wrong keeps its default, and the first such error is in
  /// `refusal` if that was empty (CommunicatorOptions::refusal).
  static Env from_process(const Settings& given, std::string& refusal);

  /// The settings marked [group].
  Settings shared() const;

  /// Takes the settings marked [group] from rank 0's `shared()`; one that is not listed keeps its value.
  /// @param theirs rank 0's version of the library, for the error when it knows settings that this one does not.
  /// @throws UsageError for unknown names and unreadable values.
  void adopt(const Settings& settings, const std::string& theirs);

 private:
  using Wrong = std::function<void(const UsageError& error)>;
  void read(const Settings& given, const Wrong& wrong);
};

/// What the setting `name` accepts, if `text` is not that; "" if it is.
/// @throws UsageError when there is no such setting.
std::string expected_instead(const std::string& name, const std::string& text);

/// Environment variables that are named like settings and are none, a mistyped one perhaps.
std::vector<std::string> unknown_settings();

/// One `name=value` line a setting, and back.
/// @throws UsageError for a line without `=`.
std::string to_text(const Settings& settings);
Settings settings_from(const std::string& text);

/// Version of this library, "0.1.0".
const char* version();

}  // namespace smddp
