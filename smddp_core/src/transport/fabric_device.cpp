// Is there an EFA device? Asked at the start of every group, so it must cost nothing on machines without.
#include <dirent.h>

#include <fstream>
#include <memory>

#include "transport/fabric.hpp"

namespace smddp {

bool efa_present() {
  const char* const root = "/sys/class/infiniband";
  const auto close = [](DIR* folder) { ::closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> folder(::opendir(root), close);
  if (!folder) return false;
  // Amazon's PCI vendor number, and EFA's devices (0xefa0 and up, one a generation).
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string device = std::string(root) + "/" + entry->d_name + "/device/";
    std::string vendor;
    std::string model;
    std::ifstream(device + "vendor") >> vendor;
    std::ifstream(device + "device") >> model;
    if (vendor == "0x1d0f" && model.rfind("0xefa", 0) == 0) return true;
  }
  return false;
}

}  // namespace smddp
