// Control's part in messages that another library carries between two ranks.
#include "transport/control.hpp"

namespace smddp {

std::uint64_t Control::issue(PeerMessage own) {
  const std::lock_guard<std::mutex> lock(mutex_);
  object(messages_.issue(own));
  return own.number;
}

void Control::issue_from_any() {
  const std::lock_guard<std::mutex> lock(mutex_);
  messages_.issue_from_any();
}

void Control::await(const PeerMessage& own) {
  if (own.peer >= 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    awaited_peers_.insert(own.peer);
  }
  if (own.number == 0) return;
  Notice note;
  note.type = Notice::Type::message;
  note.route = {rank_, own.peer, own.tag, own.sends ? 1 : 0, own.number, own.bytes};
  note.text = own.type;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto way = peers_.find(own.peer);
  if (way == peers_.end()) way = peers_.find(0);  // connected to all
  if (way != peers_.end()) hint(way->second, note);
}

void Control::stop_awaiting(const PeerMessage& own) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = awaited_peers_.find(own.peer);
  if (found != awaited_peers_.end()) awaited_peers_.erase(found);
}

void Control::take_message(const Notice& note) {
  const Route& route = note.route;
  if (route.to == rank_)
    return object(messages_.learn({route.sends != 0, route.from, route.tag, route.bytes, note.text, route.number}));
  const auto addressee = peers_.find(route.to);
  if (rank_ == 0 && addressee != peers_.end()) hint(addressee->second, note);
}

void Control::object(const std::optional<MessageLog::Contradiction>& found) {
  if (!found) return;
  const auto& [own, theirs] = *found;
  record(ErrorKind::mismatch, "ranks called different operations: " + name(rank_) + " called " +
                                  in_words(own, name(own.peer)) + ", " + name(theirs.peer) + " called " +
                                  in_words(theirs, name(rank_)) +
                                  "; type and size of a message must be the same on both");
}

}  // namespace smddp
