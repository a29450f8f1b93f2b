#include "transport/fabric_endpoint.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

namespace smddp {
namespace {

// What this transport needs of a provider. `mr_mode`: the registration duties it would accept.
FabricInfo hints_for(const std::string& provider, int mr_mode) {
  FabricInfo hints(FabricLibrary::get().dupinfo(nullptr));
  if (!hints) throw std::bad_alloc();
  hints->caps = FI_TAGGED | FI_SEND | FI_RECV;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  hints->domain_attr->threading = FI_THREAD_SAFE;
  // No thread of the library's own: what waits here also makes progress.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = mr_mode;
  return hints;
}

bool over_ip(const std::string& provider) { return provider.rfind("efa", 0) != 0; }

// For messages: where an endpoint was to be.
std::string place_of(const FabricOptions& options) {
  return over_ip(options.provider) && !options.address.empty() ? " at " + options.address : std::string();
}

FabricInfo query(const FabricOptions& options, int mr_mode) {
  const FabricInfo hints = hints_for(options.provider, mr_mode);
  const bool by_address = over_ip(options.provider) && !options.address.empty();
  fi_info* found = nullptr;
  const int code =
      FabricLibrary::get().getinfo(kFabricApi, by_address ? options.address.c_str() : nullptr, nullptr,
                                   by_address ? std::uint64_t{FI_SOURCE} : std::uint64_t{0}, hints.get(), &found);
  if (code == -FI_ENODATA) return nullptr;
  fabric_require(code, "looking for the provider " + options.provider);
  return FabricInfo(found);
}

// The provider's devices, one entry each (it lists one again for every combination of attributes), this rank's chosen.
FabricInfo choose(const FabricOptions& options) {
  FabricInfo all = query(options, FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
  // Asked only then, because a provider that could register by itself leaves it to whoever accepts the duty.
  if (!all) all = query(options, FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
  if (!all)
    throw Error(ErrorKind::system, "libfabric offers no reliable tagged messages over the provider '" +
                                       options.provider + "'" + place_of(options) +
                                       " (`fi_info -t FI_EP_RDM` lists what there is)");
  std::vector<fi_info*> devices;
  for (fi_info* one = all.get(); one; one = one->next) {
    const auto same = [&](const fi_info* other) {
      return std::strcmp(other->domain_attr->name, one->domain_attr->name) == 0;
    };
    if (std::none_of(devices.begin(), devices.end(), same)) devices.push_back(one);
  }
  const std::size_t index = static_cast<std::size_t>(options.local_rank) % devices.size();
  FabricInfo chosen(FabricLibrary::get().dupinfo(devices[index]));
  if (!chosen) throw std::bad_alloc();
  return chosen;
}

std::shared_ptr<FabricDomain> open_domain(fi_info* info) {
  auto made = std::make_shared<FabricDomain>();
  fid_fabric* fabric = nullptr;
  fabric_require(FabricLibrary::get().fabric(info->fabric_attr, &fabric, nullptr), "opening the fabric");
  made->fabric.reset(fabric);
  fid_domain* domain = nullptr;
  fabric_require(::fi_domain(fabric, info, &domain, nullptr),
                 std::string("opening the device ") + info->domain_attr->name);
  made->domain.reset(domain);
  return made;
}

// The devices that groups of this process have open. Leaked on purpose: groups may outlive static destructors.
std::shared_ptr<FabricDomain> domain_of(fi_info* info) {
  // A forked child has its own: the parent's is bound to the parent's memory and connections.
  using Key = std::tuple<pid_t, std::string, std::string, std::string>;
  static auto* const mutex = new std::mutex;
  static auto* const open = new std::map<Key, std::weak_ptr<FabricDomain>>;
  const Key key{::getpid(), info->fabric_attr->prov_name, info->fabric_attr->name, info->domain_attr->name};
  const std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<FabricDomain> domain = (*open)[key].lock();
  if (!domain) (*open)[key] = domain = open_domain(info);
  return domain;
}

}  // namespace

FabricEndpoint::FabricEndpoint(const FabricOptions& options) : info_(choose(options)), domain_(domain_of(info_.get())) {
  name_ = std::string(info_->fabric_attr->prov_name) + " on " + info_->domain_attr->name;
  if (info_->ep_attr->mem_tag_format >> 63 == 0)
    throw Error(ErrorKind::system, "libfabric: " + name_ + " has tags of less than 64 bits");
  fi_av_attr av_attr{};
  av_attr.type = info_->domain_attr->av_type;
  fid_av* av = nullptr;
  fabric_require(::fi_av_open(domain(), &av_attr, &av, nullptr), "opening an address vector");
  av_.reset(av);
  open_queue();
  fid_ep* ep = nullptr;
  fabric_require(::fi_endpoint(domain(), info_.get(), &ep, nullptr),
                 "opening an endpoint of " + name_ + place_of(options));
  ep_.reset(ep);
  fabric_require(::fi_ep_bind(ep, &av->fid, 0), "binding the address vector");
  fabric_require(::fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | FI_RECV), "binding the completion queue");
  fabric_require(::fi_enable(ep), "enabling an endpoint of " + name_ + place_of(options));
  read_address();
  find_longest();
}

// Of what is longer than its eager messages, ofi_rxm sends a note, upon which the receiver fetches it. When the sender
// leaves meanwhile, releases up to 2.6 fetch over a connection that they have just freed (ofiwg/libfabric#12674). Found
// here by the thread sanitizer: at least 8 times where 2858 groups of 3 ended in an error beside other load; with eager
// messages alone 0 times in 2080.
void FabricEndpoint::find_longest() {
  longest_ = info_->ep_attr->max_msg_size;
  if (std::strstr(info_->fabric_attr->prov_name, "ofi_rxm") == nullptr) return;
  std::size_t eager = 0;
  std::size_t bytes = sizeof(eager);
  if (::fi_getopt(&ep_->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &eager, &bytes) == FI_SUCCESS && eager > 0)
    longest_ = std::min(longest_, eager);
}

std::size_t FabricEndpoint::depth() const { return std::min(info_->tx_attr->size, info_->rx_attr->size); }

void FabricEndpoint::open_queue() {
  FabricRoomy<fi_cq_attr> attr;
  attr.value.format = FI_CQ_FORMAT_TAGGED;
  attr.value.size = info_->tx_attr->size + info_->rx_attr->size;
  attr.value.wait_obj = FI_WAIT_FD;
  fid_cq* cq = nullptr;
  long code = ::fi_cq_open(domain(), &attr.value, &cq, nullptr);
  if (code == 0) {
    cq_.reset(cq);
    if (::fi_control(&cq->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
    return;
  }
  attr.value.wait_obj = FI_WAIT_NONE;
  code = ::fi_cq_open(domain(), &attr.value, &cq, nullptr);
  fabric_require(code, "opening a completion queue");
  cq_.reset(cq);
}

void FabricEndpoint::read_address() {
  std::size_t bytes = 0;
  const int code = ::fi_getname(&ep_->fid, nullptr, &bytes);
  if (code != -FI_ETOOSMALL) fabric_require(code, "asking for the endpoint's address");
  address_.resize(bytes);
  fabric_require(::fi_getname(&ep_->fid, address_.data(), &bytes), "asking for the endpoint's address");
  address_.resize(bytes);
}

fi_addr_t FabricEndpoint::insert(const std::string& address) {
  fi_addr_t handle = FI_ADDR_UNSPEC;
  if (address.size() != address_.size() || ::fi_av_insert(av_.get(), address.data(), 1, &handle, 0, nullptr) != 1)
    throw Error(ErrorKind::system, "libfabric: an address of " + std::to_string(address.size()) +
                                       " bytes does not suit " + name_ + " (another version on that host?)");
  return handle;
}

bool FabricEndpoint::may_wait() const {
  fid* queue = &cq_->fid;
  return ::fi_trywait(domain_->fabric.get(), &queue, 1) == FI_SUCCESS;
}

std::string FabricEndpoint::describe(const fi_cq_err_entry& entry) const {
  char text[256] = "";
  const char* detail = ::fi_cq_strerror(cq_.get(), entry.prov_errno, entry.err_data, text, sizeof(text));
  std::string result = fabric_text(entry.err);
  if (detail && *detail && result != detail) result += std::string(" (") + detail + ")";
  return result;
}

std::unique_ptr<FabricPort> open_fabric(const FabricOptions& options) {
  return std::make_unique<FabricEndpoint>(options);
}

}  // namespace smddp
