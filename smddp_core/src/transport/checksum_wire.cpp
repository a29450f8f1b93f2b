#include "transport/checksum_wire.hpp"

#include <sstream>

#include "security/crc32c.hpp"
#include "smddp/errors.hpp"

namespace smddp {

void ChecksumWire::send(int peer, const void* data, std::size_t bytes, Done done) {
  if (bytes == 0) return;
  sums_.push_back(crc32c(0, data, bytes));
  wire_->send(peer, data, bytes);
  wire_->send(peer, &sums_.back(), sizeof(std::uint32_t), std::move(done));
}

void ChecksumWire::recv(int peer, void* data, std::size_t bytes, Done done) {
  if (bytes == 0) return;
  sums_.push_back(0);
  const std::uint32_t* announced = &sums_.back();
  wire_->recv(peer, data, bytes);
  wire_->recv(peer, &sums_.back(), sizeof(std::uint32_t), [this, peer, data, bytes, announced, done = std::move(done)] {
    verify(peer, data, bytes, *announced);
    if (done) done();
  });
}

void ChecksumWire::finish_turn(const Op& op, void (Wire::*turn)(const Op&)) {
  op_ = &op;
  (wire_.get()->*turn)(op);
  if (wire_->idle()) sums_.clear();
}

void ChecksumWire::verify(int peer, const void* data, std::size_t bytes, std::uint32_t announced) const {
  const std::uint32_t found = crc32c(0, data, bytes);
  if (found == announced) return;
  std::ostringstream text;
  text << describe(op_->header) << ": " << bytes << " bytes from " << who(*op_, {peer}) << " to "
       << (op_->topology ? op_->topology->who({op_->topology->rank}) : "this rank")
       << " were changed on the way (CRC32C " << std::hex << found << ", announced as " << announced
       << "): a network card, cable or memory of these hosts is faulty";
  Error error(ErrorKind::system, text.str());
  error.set_ranks({peer});
  throw error;
}

}  // namespace smddp
