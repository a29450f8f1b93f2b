// libfabric itself: loaded at run time, so that one build works on hosts with and without it.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <cstddef>
#include <memory>
#include <string>

#include "smddp/errors.hpp"

namespace smddp {

/// The version of the interface that this code is written to; every libfabric since 1.10 offers it.
constexpr std::uint32_t kFabricApi = FI_VERSION(1, 10);

/// The few functions that are symbols of the library; all others are reached through the objects they return.
struct FabricLibrary {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;

  /// Loads the library the first time, and keeps it. @throws Error saying where it was looked for.
  static const FabricLibrary& get();
};

/// Text of a negative return value.
std::string fabric_text(long code);

/// @throws Error naming the step and the text of `code` unless it is zero.
void fabric_require(long code, const std::string& step);

/// Closes what libfabric opened.
template <class Fid>
struct FabricClose {
  void operator()(Fid* object) const { ::fi_close(&object->fid); }
};
template <class Fid>
using FabricObject = std::unique_ptr<Fid, FabricClose<Fid>>;

struct FabricFreeInfo {
  void operator()(fi_info* info) const { FabricLibrary::get().freeinfo(info); }
};
using FabricInfo = std::unique_ptr<fi_info, FabricFreeInfo>;

/// A struct that later versions of the library have made longer: they find zeros, and room, where they look.
template <class T>
struct FabricRoomy {
  T value{};
  std::byte room[64]{};
};

}  // namespace smddp
