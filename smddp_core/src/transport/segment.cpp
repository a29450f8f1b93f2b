#include "transport/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "smddp/errors.hpp"
#include "transport/descriptor_server.hpp"

namespace smddp {
namespace {

constexpr char kObject = '/';  // address of a shared-memory object
constexpr char kSocket = '@';  // address of a socket that hands out the memory

std::string megabytes(double bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << bytes / (1 << 20) << " MiB";
  return text.str();
}

std::string room_in_dev_shm() {
  struct statvfs fs{};
  if (::statvfs("/dev/shm", &fs) != 0) return "there is no /dev/shm";
  const double unit = static_cast<double>(fs.f_frsize);
  return "/dev/shm has " + megabytes(unit * static_cast<double>(fs.f_bavail)) + " free of " +
         megabytes(unit * static_cast<double>(fs.f_blocks));
}

// A new object with its pages reserved: a full /dev/shm would otherwise be a SIGBUS at first touch. -1 and errno if
// not.
int make_object(const std::string& name, std::size_t bytes) {
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  const int refused = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (refused == 0) return fd;
  ::close(fd);
  ::shm_unlink(name.c_str());
  errno = refused;
  return -1;
}

// Not reserved: these pages count against the container's memory alone, where running out is no SIGBUS.
int make_anonymous(std::size_t bytes) {
  const int fd = ::memfd_create("smddp", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  const int refused = errno;
  ::close(fd);
  errno = refused;
  return -1;
}

std::size_t size_of_file(int fd) {
  struct stat file{};
  return ::fstat(fd, &file) == 0 ? static_cast<std::size_t>(file.st_size) : 0;
}

[[noreturn]] void throw_no_memory(std::size_t bytes, const std::string& dev_shm, int anonymous) {
  throw Error(ErrorKind::system,
              "cannot reserve " + megabytes(static_cast<double>(bytes)) + " of shared memory: " + dev_shm +
                  "; anonymous memory: " + std::strerror(anonymous) +
                  ". Give the container more (docker run --shm-size), or set a smaller SMDDP_SHM_CHUNK_BYTES, or "
                  "SMDDP_TRANSPORT=tcp");
}

struct Closer {
  int fd;
  ~Closer() { ::close(fd); }
};

}  // namespace

Segment Segment::create(std::size_t bytes, const Nonce& nonce) {
  const Nonce random = make_nonce();
  const std::string name = "/smddp-" + std::string(random.begin(), random.end());
  int fd = make_object(name, bytes);
  if (fd >= 0) {
    const Closer closer{fd};
    Segment segment;
    segment.address_ = name;
    segment.owner_ = true;
    if (!segment.map(fd, bytes)) throw_system("mmap of " + name, errno);
    return segment;
  }
  const std::string reason = room_in_dev_shm() + " (" + std::strerror(errno) + ")";
  fd = make_anonymous(bytes);
  if (fd < 0) throw_no_memory(bytes, reason, errno);
  const Closer closer{fd};
  Segment segment;
  if (!segment.map(fd, bytes)) throw_no_memory(bytes, reason, errno);
  segment.server_ = std::make_unique<DescriptorServer>(fd, nonce);
  segment.address_ = kSocket + segment.server_->name();
  segment.owner_ = true;
  return segment;
}

Segment Segment::open(const std::string& address, const Nonce& nonce, const Deadline& deadline) {
  int fd = -1;
  if (address[0] == kSocket) {
    fd = receive_descriptor(address.substr(1), nonce, deadline);
  } else {
    fd = ::shm_open(address.c_str(), O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
      throw_system(
          "shm_open " + address + " (ranks that look like one host do not share /dev/shm; set SMDDP_TRANSPORT=tcp)",
          errno);
  }
  const Closer closer{fd};
  Segment segment;
  segment.address_ = address;
  if (!segment.map(fd, size_of_file(fd))) throw_system("mmap of " + address, errno);
  return segment;
}

bool Segment::is_address(const std::string& text) {
  return !text.empty() && (text[0] == kObject || text[0] == kSocket);
}

bool Segment::map(int fd, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  return true;
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      address_(std::move(other.address_)),
      owner_(std::exchange(other.owner_, false)),
      server_(std::move(other.server_)) {}

Segment::~Segment() {
  hide();
  if (data_) ::munmap(data_, bytes_);
}

void Segment::hide() {
  if (!std::exchange(owner_, false)) return;
  if (server_)
    server_.reset();
  else
    ::shm_unlink(address_.c_str());
}

}  // namespace smddp
