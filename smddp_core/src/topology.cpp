#include "smddp/topology.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

Path choose(const Topology& topology, bool tcp_only) {
  if (topology.size == 1) return Path::alone;
  if (tcp_only) return Path::flat;
  if (topology.hosts.size() == 1) return Path::host;
  const std::size_t each = topology.hosts[0].size();
  const bool even = std::all_of(topology.hosts.begin(), topology.hosts.end(),
                                [&](const std::vector<int>& ranks) { return ranks.size() == each; });
  return even && each > 1 ? Path::hierarchical : Path::flat;
}

bool crowded_in(const std::vector<RankInfo>& ranks) {
  struct Machine {
    std::set<std::string> hosts;
    int ranks = 0;
  };
  std::map<std::string, Machine> machines;
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankInfo& info) {
    if (info.machine == kUnknownMachine || info.cores == 0) return false;
    Machine& machine = machines[info.machine];
    machine.hosts.insert(info.host_id);
    ++machine.ranks;
    return machine.hosts.size() > 1 && machine.ranks > info.cores;
  });
}

}  // namespace

std::string Topology::describe() const {
  switch (path) {
    case Path::alone:
      return "alone";
    case Path::host:
      return "host (shared memory)";
    case Path::flat:
      return "flat (" + network + ")";
    case Path::hierarchical:
      return "hierarchical (shared memory in hosts, " + network + " rails between)";
  }
  return "unknown";
}

std::vector<int> Topology::rail() const {
  std::vector<int> ranks;
  for (const auto& members : hosts) ranks.push_back(members.at(static_cast<std::size_t>(local_rank)));
  return ranks;
}

bool Topology::has_rails() const {
  return path == Path::hierarchical || (path == Path::flat && size > 1 && host_count() == size);
}

std::string Topology::who(const std::vector<int>& some) const {
  constexpr std::size_t shown = 8;
  if (some.empty()) return "no rank";
  std::string text;
  for (std::size_t i = 0; i < some.size() && i < shown; ++i) {
    const auto at = static_cast<std::size_t>(some[i]);
    text += (i ? ", " : "") + rank_name(some[i], job_ranks);
    if (at < places.size()) text += " on " + places[at];
  }
  if (some.size() > shown) text += " and " + std::to_string(some.size() - shown) + " more";
  return text;
}

Topology Topology::from(const std::vector<RankInfo>& ranks, int rank, bool tcp_only) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(ranks.size());
  std::map<std::string, std::size_t> index;
  for (int r = 0; r < topology.size; ++r) {
    const auto [entry, fresh] = index.emplace(ranks[static_cast<std::size_t>(r)].host_id, topology.hosts.size());
    if (fresh) topology.hosts.emplace_back();
    auto& members = topology.hosts[entry->second];
    if (r == rank) {
      topology.host = static_cast<int>(entry->second);
      topology.local_rank = static_cast<int>(members.size());
    }
    members.push_back(r);
    const RankInfo& info = ranks[static_cast<std::size_t>(r)];
    topology.places.push_back(info.name + " (" + info.address + ")");
  }
  topology.path = choose(topology, tcp_only);
  topology.crowded = crowded_in(ranks);
  return topology;
}

std::string to_text(const RankInfo& info) {
  return info.host_id + " " + info.address + " " + std::to_string(info.port) + " " + info.name + " " + info.version +
         (info.efa ? " efa " : " - ") + info.machine + " " + std::to_string(info.cores);
}

RankInfo rank_info_from(const std::string& text) {
  std::istringstream in(text);
  RankInfo info;
  std::string efa;
  if (!(in >> info.host_id >> info.address >> info.port >> info.name >> info.version >> efa >> info.machine >>
        info.cores) ||
      info.port < 0 || info.port > 65535 || info.cores < 0)
    throw UsageError("not a rank's record: '" + text + "' (ranks of different versions in one job?)");
  info.efa = efa == "efa";
  return info;
}

}  // namespace smddp
