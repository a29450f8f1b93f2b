// Which of the machine's addresses the other hosts are told to connect to.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace smddp {

/// An address of an interface that is up.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< numeric
  bool v4 = true;
};

/// The first interface (IPv4 before IPv6) that a filter in NCCL's syntax admits, or nullptr: `eth,ib` names beginning
/// with either,
/// `=eth0` exactly that name, `^docker,lo` none that begins with either, `^=docker0` all but that one.
const Interface* match_nccl(const std::string& filter, const std::vector<Interface>& interfaces);

/// The first interface (IPv4 before IPv6) with one of the comma-separated names, or nullptr.
const Interface* match_names(const std::string& names, const std::vector<Interface>& interfaces);

/// Interfaces of this machine that are up.
std::vector<Interface> list_interfaces();

/// The address to publish: of SMDDP_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME,
/// SM_NETWORK_INTERFACE_NAME (each only if it matches an interface of this machine), else the one on the route to
/// MASTER_ADDR, else the first that is not the loopback, else the loopback.
/// @param get reads an environment variable, "" when unset.
/// @throws UsageError when SMDDP_SOCKET_IFNAME is set and matches nothing: it was meant for this library.
std::string choose_address(const std::vector<Interface>& interfaces,
                           const std::function<std::string(const char*)>& get);

}  // namespace smddp
