// Memory that processes of one host share, however little of it /dev/shm has.
//
// First choice is a POSIX shared-memory object, its pages reserved at once, unlinked as soon as all have mapped it.
// Until then its maker holds a lock on it; an object that nobody holds is one of a killed process, and the next maker
// removes it. Where /dev/shm is full, too small (a container's default is 64 MB) or missing, it is an anonymous file
// (memfd) that a short Unix socket hands out: bounded by the container's memory alone, and without a name from the
// start.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "smddp/deadline.hpp"
#include "transport/connect.hpp"

namespace smddp {

/// Hands copies of a file descriptor to processes of the same user that know the group's nonce.
class DescriptorServer;

/// Name of the shared-memory object of a group's ranks on one host. They all know it, so that those who outlive its
/// maker can remove it; it does not tell the nonce.
std::string segment_name(const Nonce& nonce, int host);

/// Removes the name of an object, if it is there.
void forget_segment(const std::string& name);

/// Removes this user's objects that nobody holds: of groups whose ranks were all killed while they were being set up.
/// @param youngest objects of this age stay; their makers may not have locked them yet.
void remove_abandoned_segments(std::chrono::seconds youngest);

class Segment {
 public:
  /// Makes `bytes` bytes of zeros. @param name of the shared-memory object, see segment_name().
  /// @throws Error when neither way works; the text has both reasons.
  static Segment create(std::size_t bytes, const Nonce& nonce, const std::string& name);

  /// Maps what another process created. @param address its address().
  /// @throws Error when it cannot be reached (ranks that look like one host share neither /dev/shm nor the network).
  static Segment open(const std::string& address, const Nonce& nonce, const Deadline& deadline);

  /// Whether a text is an address() and not, for instance, a reason why there is none.
  static bool is_address(const std::string& text);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// Where others find it, until hide().
  const std::string& address() const { return address_; }

  /// Takes the address away: nobody can open it any more, and the memory is freed with the last process that maps it.
  void hide();

 private:
  Segment() = default;
  bool map(int fd, std::size_t bytes);  // false: errno says why not

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::string address_;
  bool owner_ = false;
  int lock_ = -1;  // the owner's descriptor of the object, which holds its lock
  std::unique_ptr<DescriptorServer> server_;
};

}  // namespace smddp
