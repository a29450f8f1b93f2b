// Who sits where: ranks grouped by host, and the path that follows from it. Pure data, no effects.
#pragma once

#include <string>
#include <vector>

namespace smddp {

constexpr char kUnknownMachine[] = "?";

/// What one rank tells the others before anything is connected.
struct RankInfo {
  std::string host_id;                    ///< Equal for ranks that can share memory.
  std::string address;                    ///< Numeric IPv4 or IPv6 address its listener is bound to.
  int port = 0;                           ///< Port of the listener.
  std::string name = "unnamed";           ///< The host's name, for messages.
  std::string version = "0";              ///< Of the rank's library.
  bool efa = false;                       ///< Its host has an EFA device, and the library can use it.
  std::string machine = kUnknownMachine;  ///< Equal for ranks under one kernel, in whatever containers.
  int cores = 0;                          ///< Of the machine, whatever part of them the rank may use. 0: not known.
};

/// How a group moves data; a consequence of the topology, equal on all ranks.
enum class Path {
  alone,         ///< One rank: nothing moves.
  host,          ///< All ranks on one host: shared memory.
  flat,          ///< The network between all ranks: one rank a host, uneven hosts, or SMDDP_TRANSPORT=tcp.
  hierarchical,  ///< Hosts with the same number (>1) of ranks: shared memory inside, one network rail a local rank
                 ///< between.
};

struct Topology {
  int rank = 0;
  int size = 1;
  int host = 0;                         ///< Index of this rank's host; hosts are numbered by their lowest rank.
  int local_rank = 0;                   ///< Position of this rank among the group's ranks of its host, in rank order.
  std::vector<std::vector<int>> hosts;  ///< Ranks of each host, ascending.
  Path path = Path::alone;
  bool crowded = false;             ///< Some machine plays several hosts and has fewer cores than ranks.
  std::vector<int> job_ranks;       ///< The job's number of each rank, for messages; empty: the same.
  std::vector<std::string> places;  ///< Name and address of each rank's host, for messages.
  std::string network = "TCP";      ///< What carries data between hosts, for messages.

  const std::vector<int>& local() const { return hosts[static_cast<std::size_t>(host)]; }
  int local_size() const { return static_cast<int>(local().size()); }
  int host_count() const { return static_cast<int>(hosts.size()); }

  /// Ranks with this rank's local rank, one a host, in host order. Only where has_rails().
  std::vector<int> rail() const;

  /// Whether what crosses between hosts goes by rails: several hosts, each with the same number of ranks.
  bool has_rails() const;

  /// "rank 2 on node-b (10.0.0.2)"; several are joined by commas, of many only the first few.
  std::string who(const std::vector<int>& some) const;

  /// The path in words, with the network: "flat (TCP)".
  std::string describe() const;

  /// @param ranks one entry a rank. @param tcp_only never share memory.
  static Topology from(const std::vector<RankInfo>& ranks, int rank, bool tcp_only);
};

/// Text form for the store, one line; and back. @throws UsageError when `text` is not one.
std::string to_text(const RankInfo& info);
RankInfo rank_info_from(const std::string& text);

}  // namespace smddp
