// What a failure of the fallback's is to us.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "smddp/communicator.hpp"

namespace smddp::torch_binding {

/// An operation that the fallback carries out.
struct Delegated {
  std::string name;          ///< "gather"
  int peer = -1;             ///< The other rank of one between two; -1: any, or all.
  std::uint64_t record = 0;  ///< See Communicator::began(); 0 where that was not called.
  PeerMessage message;       ///< If it is one of those.
};

/// The fallback's words, without its source file in brackets and what it adds in later lines.
std::string plain_text(const std::string& text);

/// Raises our error in place of the fallback's, and ends the group with it, if the transport failed: one that names the
/// operation, the rank, its host and the reason. What the fallback says of its arguments is passed on as it is.
[[noreturn]] void rethrow_as_ours(const std::exception_ptr& theirs, const Delegated& operation,
                                  Communicator& communicator);

}  // namespace smddp::torch_binding
