// From a store to a connected group: who is where, sockets, shared memory.
#pragma once

#include <memory>

#include "collective/tier.hpp"
#include "smddp/communicator.hpp"
#include "transport/control.hpp"
#include "transport/wire.hpp"

namespace smddp {

/// Everything a group of two or more ranks runs on.
struct Links {
  std::string id;  ///< Differs from that of every other group.
  Topology topology;
  Env env;  ///< What the group agreed on: Env::adopt().
  std::unique_ptr<Control> control;
  std::unique_ptr<Wire> wire;  ///< Between hosts. Absent on Path::host.
  std::unique_ptr<Tier> tier;  ///< Ranks of the tier are the group's. Uses wire and control.
};

/// Meets the other ranks. Rank 0 reads every rank's record and publishes one table, so that the store sees a number of
/// requests proportional to the number of ranks, not to its square.
/// @throws the same error on all ranks where one of them fails to set up.
Links bootstrap(Store& store, const CommunicatorOptions& options);

/// This host's name, without white space.
std::string host_name();

/// Identity of this host for sharing memory: the kernel's boot id and the device number of /dev/shm, which differs
/// between containers.
std::string host_identity();

}  // namespace smddp
