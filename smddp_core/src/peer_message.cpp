#include "smddp/peer_message.hpp"

namespace smddp {

// FNV-1a (Fowler, Noll, Vo), 64 bits, folded.
int travelling_tag(const PeerMessage& message) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3U; };
  for (int shift = 0; shift < 32; shift += 8)
    add(static_cast<unsigned char>(static_cast<unsigned>(message.tag) >> shift));
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<unsigned char>(message.bytes >> shift));
  for (const char each : message.type) add(static_cast<unsigned char>(each));
  return static_cast<int>((hash ^ hash >> 32U) & 0x7fffffffU);
}

std::string in_words(const PeerMessage& message, const std::string& peer_name) {
  return (message.sends ? "send to " : "recv from ") + peer_name + " (" + message.type + ", " +
         std::to_string(message.bytes) + " bytes, tag " + std::to_string(message.tag) + ")";
}

}  // namespace smddp
