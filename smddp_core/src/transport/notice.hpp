// What ranks tell each other on the control plane, and its form on the wire. No sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smddp/errors.hpp"

namespace smddp {

/// Whom an operation waits for.
struct Awaited {
  std::uint64_t sequence = 0;
  std::vector<int> ranks;
};

/// A message between two ranks, and who waits for it. It may come by way of a third.
struct Route {
  std::int32_t from = 0;  ///< The rank that waits.
  std::int32_t to = 0;    ///< The other one.
  std::int32_t tag = 0;
  std::int32_t sends = 0;  ///< Whether `from` is the one that sends.
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
};

struct Notice {
  enum class Type : std::uint16_t {
    failure = 1,   ///< The group is dead: kind, text.
    query = 2,     ///< Whom do you wait for?
    answer = 3,    ///< For those in awaited. Sent by ranks that are in an operation; the others stay silent.
    farewell = 4,  ///< The rank leaves; operations up to number `last` are done, none follows.
    message = 5,   ///< A rank waits for a message that others carry: route, and the type of its elements in text.
  };
  Type type = Type::failure;
  ErrorKind kind = ErrorKind::system;
  std::string text;
  Awaited awaited;
  std::uint64_t last = 0;
  Route route;
};

/// Longer texts and lists are cut: a notice must fit the empty buffer of a socket, because it is sent without waiting.
constexpr std::size_t kMostNoticeBytes = 1024;

std::string to_bytes(const Notice& notice);

/// Puts notices together again from what arrives.
class NoticeReader {
 public:
  void feed(const char* data, std::size_t bytes) { received_.append(data, bytes); }

  /// The next whole notice. @throws Error when what arrived cannot be one; nothing more can be read after that.
  std::optional<Notice> next();

 private:
  std::string received_;
};

}  // namespace smddp
