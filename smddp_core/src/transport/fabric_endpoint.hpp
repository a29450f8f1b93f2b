// One endpoint of a group: device, address book, completion queue, and the two calls that move data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/fabric.hpp"
#include "transport/fabric_library.hpp"

namespace smddp {

/// A device, opened once a process and shared by its groups: registered memory and protection belong to it.
struct FabricDomain {
  FabricObject<fid_fabric> fabric;
  FabricObject<fid_domain> domain;
};

/// Where the parts are opened in order and closed in reverse.
class FabricEndpoint final : public FabricPort {
 public:
  explicit FabricEndpoint(const FabricOptions& options);

  const std::string& address() const override { return address_; }
  const std::string& name() const override { return name_; }
  std::size_t longest() const override { return longest_; }

  /// Adds a peer. @return the handle to send to. @throws Error for an address that is not one of this provider's.
  fi_addr_t insert(const std::string& address);

  fid_ep* ep() const { return ep_.get(); }
  fid_cq* cq() const { return cq_.get(); }
  fid_domain* domain() const { return domain_->domain.get(); }
  /// For what must be closed before the device and is not part of the endpoint.
  std::shared_ptr<FabricDomain> shared_domain() const { return domain_; }

  /// Operations that may be under way at once in each direction.
  std::size_t depth() const;
  /// The provider moves only memory that the caller has registered.
  bool needs_registration() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }
  /// Becomes readable when there are completions; -1 where the provider has no such thing (EFA before libfabric 2).
  int wait_fd() const { return wait_fd_; }
  /// True when nothing is there to be read, so that waiting on wait_fd() misses nothing.
  bool may_wait() const;
  /// The provider's words for a failed operation.
  std::string describe(const fi_cq_err_entry& entry) const;

 private:
  void open_queue();
  void read_address();
  void find_longest();

  FabricInfo info_;
  std::shared_ptr<FabricDomain> domain_;
  FabricObject<fid_av> av_;
  FabricObject<fid_cq> cq_;
  FabricObject<fid_ep> ep_;
  int wait_fd_ = -1;
  std::size_t longest_ = 0;
  std::string address_;
  std::string name_;
};

}  // namespace smddp
