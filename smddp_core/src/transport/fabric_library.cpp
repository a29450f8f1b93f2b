#include "transport/fabric_library.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "transport/fabric.hpp"

namespace smddp {
namespace {

// The loader's own order first (LD_LIBRARY_PATH, ld.so.conf), then where the EFA installer puts it.
const char* const kNames[] = {"libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1",
                              "/opt/amazon/efa/lib64/libfabric.so.1"};

void* load() {
  std::string reason;
  for (const char* name : kNames) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = ::dlerror();
  }
  throw Error(ErrorKind::system,
              "libfabric cannot be loaded: " + reason +
                  " (Debian: libfabric1; on EC2 the EFA installer; else name its folder in LD_LIBRARY_PATH)");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) throw Error(ErrorKind::system, std::string("libfabric has no ") + name);
}

FabricLibrary open_library() {
  // Memory that a NIC may write to must stay the parent's when DataLoader forks workers. Read by libibverbs and by the
  // provider when they start; a user's own choice stands.
  if (efa_present()) {
    ::setenv("RDMAV_FORK_SAFE", "1", 0);
    ::setenv("FI_EFA_FORK_SAFE", "1", 0);
  }
  void* library = load();
  FabricLibrary functions;
  find(library, "fi_getinfo", functions.getinfo);
  find(library, "fi_freeinfo", functions.freeinfo);
  find(library, "fi_dupinfo", functions.dupinfo);
  find(library, "fi_fabric", functions.fabric);
  find(library, "fi_strerror", functions.strerror);
  return functions;
}

}  // namespace

const FabricLibrary& FabricLibrary::get() {
  static const FabricLibrary library = open_library();
  return library;
}

std::string fabric_text(long code) { return FabricLibrary::get().strerror(static_cast<int>(code < 0 ? -code : code)); }

void fabric_require(long code, const std::string& step) {
  if (code != 0) throw Error(ErrorKind::system, "libfabric: " + step + ": " + fabric_text(code));
}

std::string fabric_unavailable() {
  try {
    FabricLibrary::get();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace smddp
