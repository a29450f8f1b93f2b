// The wire over libfabric (EFA and other networks with a reliable-datagram endpoint): what the rest of the core knows
// of it. Nothing here needs libfabric's headers; without them fabric_absent.cpp stands in for the other fabric_*.cpp.
//
// Setting up takes three steps, because every rank must know the others' addresses, and all must agree to go this way:
// open_fabric() on every rank, exchange of address() by any means, connect_fabric().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "smddp/deadline.hpp"
#include "transport/connect.hpp"
#include "transport/control.hpp"
#include "transport/wire.hpp"

namespace smddp {

struct FabricOptions {
  /// libfabric's name of the provider: "efa", "tcp;ofi_rxm", "sockets", ...
  std::string provider = "efa";
  /// Numeric address of the interface to use, for providers on top of IP. Others do not look at it.
  std::string address;
  /// Of several equal devices (p4d.24xlarge has 4, p5.48xlarge 32), rank i of a host takes device i modulo their
  /// number.
  int local_rank = 0;
};

/// An endpoint that has an address and no peers yet.
class FabricPort {
 public:
  virtual ~FabricPort() = default;
  /// Bytes that peers need to reach it; of one size for all ports of one provider.
  virtual const std::string& address() const = 0;
  /// Provider and device, "efa on rdmap16s27", for messages.
  virtual const std::string& name() const = 0;
  /// Bytes of the largest message that should be sent through it.
  virtual std::size_t longest() const = 0;
};

/// How a wire over a fabric cuts and paces messages. Equal on all ranks.
struct FabricPace {
  /// Pieces travel in messages of at most this many bytes.
  std::size_t segment_bytes = std::size_t{512} << 10;
  /// Messages under way to, and expected from, each peer at most; less where the provider allows less.
  int window = 8;
  /// Copy through memory registered once, even if the provider registers by itself. For tests: what demands it
  /// (FI_MR_LOCAL) is hardware.
  bool bounce = false;
  /// Looks for completions without sleeping before each sleep.
  int spins = 0;
};

/// Empty when this build can use libfabric; otherwise why not. Loads the library.
std::string fabric_unavailable();

/// True when this machine has an EFA device. Loads nothing: it looks under /sys/class/infiniband.
bool efa_present();

/// @throws Error naming the provider and what is missing: the library, the provider, a device.
std::unique_ptr<FabricPort> open_fabric(const FabricOptions& options);

/// Makes the wire and exchanges a first message with every peer, so that a network that lets nothing through is
/// noticed now. @param addresses of the peers, by rank. @param control outlives the wire.
/// @throws TimeoutError naming the ranks that were not heard; PeerError.
std::unique_ptr<Wire> connect_fabric(std::unique_ptr<FabricPort> port, int rank,
                                     const std::map<int, std::string>& addresses, const Nonce& nonce, Control& control,
                                     const FabricPace& pace, const Deadline& deadline);

}  // namespace smddp
