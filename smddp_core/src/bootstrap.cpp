#include "bootstrap.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>

#include "collective/hierarchy.hpp"
#include "collective/host_tier.hpp"
#include "collective/net_tier.hpp"
#include "fabric_plan.hpp"
#include "smddp/errors.hpp"
#include "table.hpp"
#include "transport/arena.hpp"
#include "transport/interface.hpp"
#include "transport/mesh.hpp"

namespace smddp {
namespace {

constexpr char kReady[] = "ok";

// What stands in the store in place of a table: "refused KIND MESSAGE".
std::string to_refusal(const Error& error) {
  return "refused " + std::to_string(static_cast<int>(error.kind())) + " reported by rank 0: " + error.what();
}

void throw_if_refusal(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  int kind = 0;
  if (!(in >> word >> kind) || word != "refused") return;
  std::string reason;
  std::getline(in >> std::ws, reason, '\0');
  throw_error(static_cast<ErrorKind>(kind), reason);
}

class Bootstrap {
 public:
  Bootstrap(Store& store, const CommunicatorOptions& options)
      : store_(store),
        options_(options),
        env_(options.env),
        deadline_(std::min(options.timeout, options.env.init_timeout)),
        address_(choose_address(list_interfaces(), [](const char* name) {
          const char* value = std::getenv(name);
          return std::string(value ? value : "");
        })) {}

  Links run() {
    auto [listener, port] = listen_on(address_);
    const Table table = exchange_records(port);
    env_.adopt(table.settings, table.version);
    Links links;
    links.env = env_;
    links.topology = Topology::from(table.ranks, options_.rank, env_.tcp_only);
    FabricPlan fabric = plan_fabric(env_, table.ranks, links.topology, address_,
                                    [this](const std::string& mine) { return share("fabric/", mine); });
    if (fabric.port) links.topology.network = "libfabric, " + fabric.port->name();
    std::optional<Arena> arena;
    std::exception_ptr failure;
    std::string reason;
    try {
      connect(listener, table, std::move(fabric), links);
      if (links.topology.path != Path::flat) arena.emplace(share_memory(table, links));
    } catch (const Error& error) {
      failure = std::current_exception();
      reason = error.what();
    }
    const std::string verdict = agree(reason);
    if (failure) std::rethrow_exception(failure);
    if (verdict != kReady) throw Error(ErrorKind::system, verdict);
    if (arena) arena->join(links.topology.local_rank, links.topology.local(), *links.control);
    build_tier(links, std::move(arena));
    return links;
  }

 private:
  std::string get(const std::string& key) { return store_.get(key, deadline_.left(std::chrono::hours(24))); }

  // One value from every rank, at rank 0. Says who is missing.
  std::vector<std::string> gather(const std::string& prefix) {
    std::vector<std::string> values;
    std::vector<int> missing;
    for (int r = 0; r < options_.size; ++r) {
      try {
        values.push_back(get(prefix + std::to_string(r)));
      } catch (const TimeoutError&) {
        missing.push_back(r);
      }
    }
    if (missing.empty()) return values;
    std::ostringstream text;
    text << "group " << options_.name << ": " << join_ranks(missing) << " did not join in " << deadline_.seconds()
         << " s";
    throw TimeoutError(text.str());
  }

  // Every rank's text (one line), to all: rank 0 collects and publishes them.
  std::vector<std::string> share(const std::string& prefix, const std::string& mine) {
    store_.set(prefix + std::to_string(options_.rank), mine);
    const std::string key = prefix + "all";
    if (options_.rank == 0) {
      std::string all;
      try {
        for (const std::string& line : gather(prefix)) all += line + "\n";
      } catch (const Error& error) {
        store_.set(key, to_refusal(error));
        throw;
      }
      store_.set(key, all);
    }
    const std::string text = get(key);
    throw_if_refusal(text);
    std::vector<std::string> lines(1);
    std::istringstream in(text);
    while (std::getline(in, lines.back())) lines.emplace_back();
    lines.pop_back();
    if (lines.size() != static_cast<std::size_t>(options_.size))
      throw Error(ErrorKind::system, key + " in the store has " + std::to_string(lines.size()) + " lines for " +
                                         std::to_string(options_.size) + " ranks");
    return lines;
  }

  // Rank 0 publishes one table for all, or, under the same key, why there is none.
  Table exchange_records(int port) {
    RankInfo mine{env_.host_id.empty() ? host_identity() : env_.host_id,
                  address_,
                  port,
                  host_name(),
                  version(),
                  can_use_efa(env_)};
    store_.set("rank/" + std::to_string(options_.rank), smddp::to_text(mine));
    if (options_.rank == 0) return publish_table();
    const std::string text = get("table");
    throw_if_refusal(text);
    Table table = table_from(text);
    if (static_cast<int>(table.ranks.size()) != options_.size)
      throw UsageError("rank 0 has a group of " + std::to_string(table.ranks.size()) + " ranks, rank " +
                       std::to_string(options_.rank) + " one of " + std::to_string(options_.size));
    return table;
  }

  Table publish_table() {
    try {
      Table table;
      table.version = version();
      table.nonce = make_nonce();
      table.settings = env_.shared();
      for (const std::string& text : gather("rank/")) {
        table.ranks.push_back(rank_info_from(text));
        const RankInfo& info = table.ranks.back();
        require_version(info.version, "rank " + std::to_string(table.ranks.size() - 1) + " (" + info.name + ")");
      }
      store_.set("table", to_text(table));
      return table;
    } catch (const Error& error) {
      store_.set("table", to_refusal(error));
      throw;
    }
  }

  void connect(const Socket& listener, const Table& table, FabricPlan fabric, Links& links) {
    std::vector<int> everyone(static_cast<std::size_t>(options_.size));
    std::iota(everyone.begin(), everyone.end(), 0);
    Wanted wanted;
    wanted.streams = env_.streams;
    switch (links.topology.path) {
      case Path::alone:
        break;
      case Path::host:
        wanted.control = everyone;
        break;
      case Path::flat:
        wanted.control = everyone;
        wanted.data = everyone;
        break;
      case Path::hierarchical:
        wanted.control = links.topology.local();
        wanted.data = links.topology.rail();
        for (const int rank : wanted.data)
          if (rank != options_.rank) wanted.control.push_back(rank);
        break;
    }
    const std::vector<int> peers = wanted.data;
    if (fabric.port) wanted.data.clear();
    Connections made = connect_peers(listener, table.ranks, options_.rank, wanted, table.nonce, deadline_);
    links.control = std::make_unique<Control>(options_.rank, std::move(made.control));
    if (fabric.port) {
      links.wire = fabric_wire(std::move(fabric), env_, links.topology, peers, table.nonce, *links.control, deadline_);
      return;
    }
    for (const Peers& stream : made.data)
      for (const auto& [rank, socket] : stream) set_buffers(socket, env_.socket_buffer_bytes);
    if (!peers.empty())
      links.wire = std::make_unique<Mesh>(std::move(made.data), *links.control, links.topology.local_size());
  }

  // The host's first rank makes the segment, the others map it. A failure travels under the same key as the name.
  Arena share_memory(const Table& table, const Links& links) {
    Arena::Layout layout;
    layout.ranks = links.topology.local_size();
    layout.nonce = table.nonce;
    layout.chunk_bytes = env_.shm_chunk_bytes;
    const std::string key = "arena/" + std::to_string(links.topology.host);
    if (links.topology.local_rank != 0) {
      const std::string address = get(key);
      if (!Segment::is_address(address)) throw Error(ErrorKind::system, address);
      const std::string mapped = "mapped/" + std::to_string(options_.rank);
      try {
        Arena arena = Arena::open(address, layout, deadline_);
        store_.set(mapped, kReady);
        return arena;
      } catch (const Error& error) {
        store_.set(mapped, error.what());
        throw;
      }
    }
    try {
      Arena arena = Arena::create(layout);
      store_.set(key, arena.address());
      for (const int rank : links.topology.local())
        if (rank != options_.rank) {
          const std::string state = get("mapped/" + std::to_string(rank));
          if (state != kReady) throw Error(ErrorKind::system, state);
        }
      // Without an address the memory is freed when the last process ends, however it ends.
      arena.hide();
      return arena;
    } catch (const Error& error) {
      store_.set(key, error.what());
      throw;
    }
  }

  // The same verdict for all ranks: kReady, or the first failure (a rank that failed itself does not wait for it).
  std::string agree(const std::string& failure) {
    store_.set("ready/" + std::to_string(options_.rank), failure.empty() ? kReady : failure);
    if (options_.rank == 0) {
      std::string verdict = kReady;
      int r = 0;
      for (const std::string& state : gather("ready/")) {
        if (state != kReady && verdict == kReady)
          verdict = r == 0 ? state : "reported by rank " + std::to_string(r) + ": " + state;
        ++r;
      }
      store_.set("verdict", verdict);
    }
    return failure.empty() ? get("verdict") : failure;
  }

  NetSettings net_settings() const {
    NetSettings settings;
    settings.block_bytes = env_.net_block_bytes;
    settings.piece_bytes = env_.net_piece_bytes;
    settings.one_shot_bytes = env_.net_one_shot_bytes;
    settings.min_shard_bytes = env_.min_shard_bytes;
    settings.wire = env_.wire_dtype;
    settings.wire_min_bytes = env_.wire_min_bytes;
    return settings;
  }

  void build_tier(Links& links, std::optional<Arena> arena) {
    const Env& env = env_;
    const Topology& topology = links.topology;
    std::unique_ptr<HostTier> host;
    if (arena && links.wire)
      arena->while_waiting([wire = links.wire.get()](const Op& op) {
        if (!wire->idle()) wire->progress(op);
        return !wire->idle();
      });
    if (arena) {
      host = std::make_unique<HostTier>(std::move(*arena), env.one_shot_bytes);
      host->tune(Op{OpHeader{}, deadline_}, env.shm_stores);
      if (env.info && topology.local_rank == 0)
        std::fprintf(stderr, "smddp %s: group %s, host %d: %s\n", version(), options_.name.c_str(), topology.host,
                     host->description().c_str());
    }
    if (topology.path == Path::host) {
      links.tier = std::move(host);
    } else if (topology.path == Path::flat) {
      std::vector<int> everyone(static_cast<std::size_t>(topology.size));
      std::iota(everyone.begin(), everyone.end(), 0);
      links.tier = std::make_unique<NetTier>(*links.wire, everyone, topology.rank, net_settings());
    } else {
      auto rail = std::make_unique<NetTier>(*links.wire, topology.rail(), topology.host, net_settings());
      links.tier = std::make_unique<Hierarchy>(topology, std::move(host), std::move(rail));
    }
  }

  Store& store_;
  const CommunicatorOptions& options_;
  Env env_;  // rank 0's where it counts, from exchange_records() on
  Deadline deadline_;
  std::string address_;
};

}  // namespace

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unnamed";
  return name;
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm{};
  if (::stat("/dev/shm", &shm) != 0) return "no-shm-" + boot;
  return boot + "-" + std::to_string(shm.st_dev);
}

Links bootstrap(Store& store, const CommunicatorOptions& options) { return Bootstrap(store, options).run(); }

}  // namespace smddp
