#include "bootstrap.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <sstream>

#include "collective/hierarchy.hpp"
#include "collective/host_tier.hpp"
#include "collective/net_tier.hpp"
#include "fabric_plan.hpp"
#include "lifelines.hpp"
#include "rendezvous.hpp"
#include "smddp/errors.hpp"
#include "table.hpp"
#include "transport/arena.hpp"
#include "transport/checksum_wire.hpp"
#include "transport/interface.hpp"
#include "transport/mesh.hpp"

namespace smddp {
namespace {

/// Peers to meet on each channel. Symmetric: if rank a lists b, rank b lists a.
struct Wanted {
  std::vector<int> control;
  std::vector<int> data;
};

constexpr char kReady[] = "ok";

// One value for all containers of a machine.
std::string boot_id() {
  std::string boot;
  return std::ifstream("/proc/sys/kernel/random/boot_id") >> boot ? boot : kUnknownMachine;
}

int cores_of_machine() { return static_cast<int>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 0L)); }

class Bootstrap {
 public:
  Bootstrap(Store& store, const CommunicatorOptions& options)
      : options_(options),
        env_(options.env),
        meeting_point_(store, options.name, options.job_ranks, std::min(options.timeout, options.env.init_timeout)) {}

  // However this ended: the rank that made the memory may have been killed before it could take the name away.
  ~Bootstrap() {
    for (const std::string& name : segments_) forget_segment(name);
  }
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  Links run() {
    Links links;
    links.control = std::make_unique<Control>(rank(), options_.job_ranks);
    meeting_point_.watch(links.control.get());
    meeting_point_.watch(options_.watch);
    Lifelines lifelines(meeting_point_, options_, *links.control);
    try {
      meet(lifelines, links);
    } catch (const Error& error) {
      lifelines.give_up(error);
      throw;
    }
    return links;
  }

 private:
  int rank() const { return options_.rank; }
  static std::string record_of(int rank) { return "rank/" + std::to_string(rank); }

  void meet(Lifelines& lifelines, Links& links) {
    try {
      address_ = choose_address(list_interfaces(), [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value ? value : "");
      });
      auto [listener, port] = listen_on(address_);
      const RankInfo mine = describe_myself(port);
      const Root root = lifelines.meet(listener, mine);
      links.id = std::string(root.nonce.begin(), root.nonce.end());
      meeting_point_.enter(links.id);
      // Which of the hosts this one is says the table, which may not come.
      for (int host = 0; host < options_.size; ++host) segments_.push_back(segment_name(root.nonce, host));
      meeting_point_.set(record_of(rank()), smddp::to_text(mine));
      finish(listener, root, links);
      links.control->moved_on();
    } catch (const Error&) {
      refuse();  // the better reason: nobody talks to a rank that could not read its secret
      throw;
    }
  }

  void finish(const Socket& listener, const Root& root, Links& links) {
    // Rank 0 has met all others now; these know that it has when there is a table. Earlier, some would hear nothing.
    if (rank() == 0) refuse();
    const Table table = exchange_records(root);
    refuse();
    env_.adopt(table.settings, table.version);
    links.control->set_link_timeout(env_.link_timeout);
    links.env = env_;
    links.topology = Topology::from(table.ranks, rank(), env_.tcp_only);
    links.topology.job_ranks = options_.job_ranks;
    FabricPlan fabric = plan_fabric(env_, table.ranks, links.topology, address_,
                                    [this](const std::string& mine) { return share("fabric/", mine); });
    if (fabric.port) links.topology.network = "libfabric, " + fabric.port->name();
    segments_.clear();
    if (links.topology.path != Path::flat) segments_ = {segment_name(table.nonce, links.topology.host)};
    connect(listener, root.key, table, std::move(fabric), links);
    std::optional<Arena> arena;
    if (links.topology.path != Path::flat) arena.emplace(share_memory(table, links));
    agree();
    if (arena) arena->join(links.topology.local_rank, links.topology.local(), *links.control);
    build_tier(links, std::move(arena));
  }

  void refuse() const {
    if (!options_.refusal.empty()) throw UsageError(options_.refusal);
  }

  RankInfo describe_myself(int port) const {
    const std::string host = env_.host_id.empty() ? host_identity() : env_.host_id;
    return {host, address_, port, host_name(), wire_version(), can_use_efa(env_), boot_id(), cores_of_machine()};
  }

  Table exchange_records(const Root& root) {
    if (rank() == 0) return publish_table(root);
    Table table = table_from(meeting_point_.get("table", 0));
    if (static_cast<int>(table.ranks.size()) != options_.size)
      throw UsageError("rank 0 has a group of " + std::to_string(table.ranks.size()) + " ranks, rank " +
                       std::to_string(rank()) + " one of " + std::to_string(options_.size));
    return table;
  }

  Table publish_table(const Root& root) {
    Table table{wire_version(), root.nonce, env_.shared(), {}};
    for (int r = 0; r < options_.size; ++r) {
      table.ranks.push_back(rank_info_from(meeting_point_.get(record_of(r), r)));
      const RankInfo& info = table.ranks.back();
      require_version(info.version, "rank " + std::to_string(r) + " on " + info.name);
    }
    meeting_point_.set("table", to_text(table));
    return table;
  }

  // Every rank's text (one line), to all: rank 0 collects and publishes them.
  std::vector<std::string> share(const std::string& prefix, const std::string& mine) {
    meeting_point_.set(prefix + std::to_string(rank()), mine);
    const std::string key = prefix + "all";
    if (rank() == 0) {
      std::string all;
      for (int r = 0; r < options_.size; ++r) all += meeting_point_.get(prefix + std::to_string(r), r) + "\n";
      meeting_point_.set(key, all);
    }
    std::vector<std::string> lines(1);
    std::istringstream in(meeting_point_.get(key, 0));
    while (std::getline(in, lines.back())) lines.emplace_back();
    lines.pop_back();
    if (lines.size() != static_cast<std::size_t>(options_.size))
      throw Error(ErrorKind::system, key + " in the store has " + std::to_string(lines.size()) + " lines for " +
                                         std::to_string(options_.size) + " ranks");
    return lines;
  }

  // Peers on each channel besides the lifelines.
  Wanted wanted(const Topology& topology) const {
    std::vector<int> everyone(static_cast<std::size_t>(options_.size));
    std::iota(everyone.begin(), everyone.end(), 0);
    switch (topology.path) {
      case Path::alone:
        return {};
      case Path::host:
        return {everyone, {}};
      case Path::flat:
        return {everyone, everyone};
      case Path::hierarchical:
        break;
    }
    Wanted some{topology.local(), topology.rail()};
    for (const int peer : topology.rail())
      if (peer != rank()) some.control.push_back(peer);
    return some;
  }

  void connect(const Socket& listener, const std::string& key, const Table& table, FabricPlan fabric, Links& links) {
    Meeting meeting(listener, rank(), options_.job_ranks, key, meeting_point_.deadline(),
                    [this] { meeting_point_.check(); });
    const auto add = [&](int peer, int channel) {
      if (peer > rank()) meeting.expect({peer, channel});
      if (peer < rank()) meeting.call({peer, channel}, table.ranks[static_cast<std::size_t>(peer)]);
    };
    const Wanted peers = wanted(links.topology);
    for (const int peer : peers.control)
      if (peer != 0 && rank() != 0) add(peer, static_cast<int>(Channel::control));
    const int streams = fabric.port ? 0 : env_.streams;
    for (const int peer : peers.data)
      for (int stream = 0; stream < streams; ++stream) add(peer, static_cast<int>(Channel::data) + stream);
    std::vector<Peers> data(static_cast<std::size_t>(env_.streams));
    meeting.run([&](Line line, Socket socket) {
      set_link_timeout(socket, env_.link_timeout);
      if (line.second == static_cast<int>(Channel::control)) return links.control->add(line.first, std::move(socket));
      set_buffers(socket, env_.socket_buffer_bytes);
      data[static_cast<std::size_t>(line.second - static_cast<int>(Channel::data))][line.first] = std::move(socket);
    });
    if (fabric.port)
      links.wire = fabric_wire(std::move(fabric), env_, links.topology, peers.data, table.nonce, *links.control,
                               meeting_point_.deadline());
    else if (!peers.data.empty())
      links.wire = std::make_unique<Mesh>(std::move(data), *links.control, links.topology.local_size());
    if (env_.checksum && links.wire) links.wire = std::make_unique<ChecksumWire>(std::move(links.wire));
  }

  // The host's first rank makes the segment, the others map it.
  Arena share_memory(const Table& table, const Links& links) {
    Arena::Layout layout;
    layout.ranks = links.topology.local_size();
    layout.nonce = table.nonce;
    layout.host = links.topology.host;
    layout.chunk_bytes = env_.shm_chunk_bytes;
    const std::string key = "arena/" + std::to_string(links.topology.host);
    const int first = links.topology.local()[0];
    if (rank() != first) {
      const std::string address = meeting_point_.get(key, first);
      Arena arena = [&] {
        try {
          return Arena::open(address, layout, meeting_point_.deadline());
        } catch (const Error&) {
          meeting_point_.check();  // a rank that failed has removed it: its reason is the one that counts
          throw;
        }
      }();
      meeting_point_.set("mapped/" + std::to_string(rank()), kReady);
      return arena;
    }
    Arena arena = Arena::create(layout);
    meeting_point_.set(key, arena.address());
    for (const int peer : links.topology.local())
      if (peer != rank()) meeting_point_.get("mapped/" + std::to_string(peer), peer);
    // Without an address the memory is freed when the last process ends, however it ends.
    arena.hide();
    return arena;
  }

  // Returns when all ranks are set up. One that fails says so on its lifeline.
  void agree() {
    meeting_point_.set("ready/" + std::to_string(rank()), kReady);
    if (rank() == 0) {
      for (int r = 1; r < options_.size; ++r) meeting_point_.get("ready/" + std::to_string(r), r);
      meeting_point_.close();
      meeting_point_.set("verdict", kReady);
    }
    meeting_point_.get("verdict", 0);
  }

  NetSettings net_settings(bool crowded) const {
    NetSettings settings;
    settings.block_bytes = env_.net_block_bytes;
    settings.shard_bytes = env_.net_shard_bytes;
    settings.piece_bytes = env_.net_piece_bytes;
    settings.one_shot_bytes = env_.net_one_shot_bytes;
    settings.try_bytes = env_.net_try_bytes;
    settings.relay = env_.net_relay == When::always || (env_.net_relay == When::automatic && crowded);
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
      host->tune(Op{OpHeader{}, meeting_point_.deadline()}, env);
      if (env.info && topology.local_rank == 0)
        std::fprintf(stderr, "smddp %s: group %s, host %d: %s\n", version(), options_.name.c_str(), topology.host,
                     host->description().c_str());
    }
    if (topology.path == Path::host) {
      links.tier = std::move(host);
    } else if (topology.path == Path::flat) {
      std::vector<int> everyone(static_cast<std::size_t>(topology.size));
      std::iota(everyone.begin(), everyone.end(), 0);
      links.tier = std::make_unique<NetTier>(*links.wire, everyone, topology.rank, net_settings(topology.crowded));
    } else {
      auto rail =
          std::make_unique<NetTier>(*links.wire, topology.rail(), topology.host, net_settings(topology.crowded));
      links.tier = std::make_unique<Hierarchy>(topology, std::move(host), std::move(rail));
    }
  }

  const CommunicatorOptions& options_;
  Env env_;  // rank 0's where it counts, once the table is there
  Rendezvous meeting_point_;
  std::string address_;
  std::vector<std::string> segments_;  // names that the host's memory may have, once there may be one
};

}  // namespace

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unnamed";
  return name;
}

std::string host_identity() {
  const std::string boot = boot_id();
  struct stat shm{};
  if (::stat("/dev/shm", &shm) != 0) return "no-shm-" + boot;
  return boot + "-" + std::to_string(shm.st_dev);
}

Links bootstrap(Store& store, const CommunicatorOptions& options) { return Bootstrap(store, options).run(); }

}  // namespace smddp
