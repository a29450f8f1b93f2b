// Stands in for the wire over libfabric in a build without its headers.
#include "smddp/errors.hpp"
#include "transport/fabric.hpp"

namespace smddp {

std::string fabric_unavailable() {
  return "this build has no support for libfabric: its headers were not there (Debian: libfabric-dev)";
}

std::unique_ptr<FabricPort> open_fabric(const FabricOptions& options) {
  throw Error(ErrorKind::system, fabric_unavailable() + ", and " + options.provider + " needs it");
}

std::unique_ptr<Wire> connect_fabric(std::unique_ptr<FabricPort>, int, const std::map<int, std::string>&, const Nonce&,
                                     Control&, const FabricPace&, const Deadline&) {
  throw Error(ErrorKind::system, fabric_unavailable());
}

}  // namespace smddp
