#include "transport/notice.hpp"

#include <algorithm>
#include <cstring>

namespace smddp {
namespace {

struct Head {
  std::uint16_t type = 0;
  std::uint16_t kind = 0;
  std::uint32_t length = 0;
};
static_assert(sizeof(Head) == 8, "Head travels as plain bytes");

std::string to_bytes(const Awaited& awaited) {
  std::string bytes(sizeof(awaited.sequence), '\0');
  std::memcpy(bytes.data(), &awaited.sequence, sizeof(awaited.sequence));
  const std::size_t most = (kMostNoticeBytes - bytes.size()) / sizeof(std::int32_t);
  for (std::size_t i = 0; i < std::min(awaited.ranks.size(), most); ++i) {
    const std::int32_t rank = awaited.ranks[i];
    bytes.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  }
  return bytes;
}

Awaited awaited_from(const std::string& bytes) {
  Awaited awaited;
  if (bytes.size() < sizeof(awaited.sequence)) throw Error(ErrorKind::system, "an answer without a number");
  std::memcpy(&awaited.sequence, bytes.data(), sizeof(awaited.sequence));
  for (std::size_t at = sizeof(awaited.sequence); at + sizeof(std::int32_t) <= bytes.size();
       at += sizeof(std::int32_t)) {
    std::int32_t rank = 0;
    std::memcpy(&rank, bytes.data() + at, sizeof(rank));
    awaited.ranks.push_back(rank);
  }
  return awaited;
}

bool has_number(Notice::Type type) { return type == Notice::Type::farewell; }
bool has_route(Notice::Type type) { return type == Notice::Type::message; }

template <class Part>
std::string bytes_of(const Part& part) {
  return std::string(reinterpret_cast<const char*>(&part), sizeof(Part));
}

// What stands in front of a notice's text, which is then what is left.
template <class Part>
Part taken_off(std::string& text) {
  if (text.size() < sizeof(Part)) throw Error(ErrorKind::system, "a note that is too short");
  Part part;
  std::memcpy(&part, text.data(), sizeof(Part));
  text.erase(0, sizeof(Part));
  return part;
}

// Not inside a character: UTF-8 goes on with bytes of the form 10xxxxxx.
std::string cut(const std::string& text, std::size_t most) {
  std::size_t end = std::min(most, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

std::string body_of(const Notice& notice) {
  if (notice.type == Notice::Type::answer) return to_bytes(notice.awaited);
  const std::string text = cut(notice.text, kMostNoticeBytes - sizeof(Route));
  if (has_number(notice.type)) return bytes_of(notice.last) + text;
  if (has_route(notice.type)) return bytes_of(notice.route) + text;
  return text;
}

}  // namespace

std::string to_bytes(const Notice& notice) {
  const std::string body = body_of(notice);
  Head head;
  head.type = static_cast<std::uint16_t>(notice.type);
  head.kind = static_cast<std::uint16_t>(notice.kind);
  head.length = static_cast<std::uint32_t>(body.size());
  std::string bytes(sizeof(head), '\0');
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes + body;
}

std::optional<Notice> NoticeReader::next() {
  Head head;
  if (received_.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, received_.data(), sizeof(head));
  const bool known = head.type >= static_cast<std::uint16_t>(Notice::Type::failure) &&
                     head.type <= static_cast<std::uint16_t>(Notice::Type::message);
  if (!known || head.length > kMostNoticeBytes) throw Error(ErrorKind::system, "an unreadable notice");
  if (received_.size() < sizeof(head) + head.length) return std::nullopt;
  const std::string body = received_.substr(sizeof(head), head.length);
  received_.erase(0, sizeof(head) + head.length);
  Notice notice;
  notice.type = static_cast<Notice::Type>(head.type);
  notice.kind = static_cast<ErrorKind>(head.kind);
  notice.text = body;
  if (notice.type == Notice::Type::answer) notice.awaited = awaited_from(body);
  if (has_number(notice.type)) notice.last = taken_off<std::uint64_t>(notice.text);
  if (has_route(notice.type)) notice.route = taken_off<Route>(notice.text);
  return notice;
}

}  // namespace smddp
