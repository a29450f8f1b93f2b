#include "transport/message_log.hpp"

#include <algorithm>
#include <utility>

namespace smddp {
namespace {

// What is remembered: messages under way of this rank, what others said they wait for, and tags. A program that never
// uses a tag twice is not to fill the memory: after so many nothing more is compared.
constexpr std::size_t kMostOwn = 1024;
constexpr std::size_t kMostTheirs = 256;
constexpr std::size_t kMostChannels = 65536;

bool alike(const PeerMessage& one, const PeerMessage& other) {
  return one.bytes == other.bytes && one.type == other.type;
}

bool meet(const PeerMessage& own, const PeerMessage& theirs) {
  return own.sends != theirs.sends && own.peer == theirs.peer && own.tag == theirs.tag && own.number == theirs.number;
}

}  // namespace

std::optional<MessageLog::Contradiction> MessageLog::issue(PeerMessage& own) {
  own.number = 0;
  if (!own.sends && from_any_) return std::nullopt;
  const Channel channel{own.sends, own.peer, own.tag};
  const auto found = issued_.find(channel);
  if (found == issued_.end() && issued_.size() >= kMostChannels) return std::nullopt;
  own.number = found == issued_.end() ? (issued_[channel] = 1) : ++found->second;
  const Place place{channel, own.number};
  own_.emplace(place, own);
  oldest_.push_back(place);
  if (oldest_.size() > kMostOwn) {
    own_.erase(oldest_.front());
    oldest_.pop_front();
  }
  const auto waits =
      std::find_if(theirs_.begin(), theirs_.end(), [&](const PeerMessage& each) { return meet(own, each); });
  if (waits == theirs_.end()) return std::nullopt;
  const PeerMessage theirs = *waits;
  theirs_.erase(waits);
  return alike(own, theirs) ? std::nullopt : std::optional<Contradiction>({own, theirs});
}

std::optional<MessageLog::Contradiction> MessageLog::learn(PeerMessage theirs) {
  if (theirs.sends && from_any_) return std::nullopt;
  const auto own = own_.find({{!theirs.sends, theirs.peer, theirs.tag}, theirs.number});
  if (own != own_.end())
    return alike(own->second, theirs) ? std::nullopt : std::optional<Contradiction>({own->second, std::move(theirs)});
  theirs_.push_back(std::move(theirs));
  if (theirs_.size() > kMostTheirs) theirs_.pop_front();
  return std::nullopt;
}

}  // namespace smddp
