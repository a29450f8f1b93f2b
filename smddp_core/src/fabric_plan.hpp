// Whether a group goes over the fabric: one answer for all its ranks, from what each of them can do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smddp/env.hpp"
#include "smddp/topology.hpp"
#include "transport/fabric.hpp"

namespace smddp {

/// How to reach everybody; without a port the group uses TCP.
struct FabricPlan {
  std::unique_ptr<FabricPort> port;
  std::vector<std::string> addresses;  ///< By rank.
  std::size_t longest = 0;             ///< Bytes of the largest message that all can send and receive.
};

/// Gives every rank's text to all: the argument is this rank's, the result has all by rank.
using Share = std::function<std::vector<std::string>(const std::string&)>;

/// True when this rank may go over EFA: what it tells the others in RankInfo::efa. Loads libfabric only where there is
/// a device.
bool can_use_efa(const Env& env);

/// Opens an endpoint and exchanges addresses, if the group's settings and hosts ask for it. Called by all ranks.
/// @param address of the interface to use, for providers on top of IP.
/// @throws Error with SMDDP_NET=fabric, the same on all ranks, naming those that cannot use it and why.
FabricPlan plan_fabric(const Env& env, const std::vector<RankInfo>& ranks, const Topology& topology,
                       const std::string& address, const Share& share);

/// The wire of a plan that has a port. @param peers the ranks that this one exchanges data with.
/// @throws like connect_fabric().
std::unique_ptr<Wire> fabric_wire(FabricPlan plan, const Env& env, const Topology& topology,
                                  const std::vector<int>& peers, const Nonce& nonce, Control& control,
                                  const Deadline& deadline);

}  // namespace smddp
