#include "transport/segment.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "security/sha256.hpp"
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

constexpr char kPrefix[] = "smddp-";
// Between making an object and locking it, its maker may be kept from running.
constexpr std::chrono::seconds kYoungest{60};

struct Closer {
  int fd;
  ~Closer() {
    if (fd >= 0) ::close(fd);
  }
};

bool is_abandoned(const std::string& name, std::chrono::seconds youngest) {
  const Closer object{::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600)};
  struct stat file{};
  if (object.fd < 0 || ::fstat(object.fd, &file) != 0 || file.st_uid != ::geteuid()) return false;
  const auto age = std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(file.st_ctime);
  return age >= youngest && ::flock(object.fd, LOCK_EX | LOCK_NB) == 0;
}

// A new object with its pages reserved: a full /dev/shm would otherwise be a SIGBUS at first touch. -1 and errno if
// not.
int make_object(const std::string& name, std::size_t bytes) {
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  const int locked = ::flock(fd, LOCK_SH | LOCK_NB);
  const int refused = locked == 0 ? ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) : errno;
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

}  // namespace

std::string segment_name(const Nonce& nonce, int host) {
  const std::string text = "segment " + std::to_string(host) + " " + std::string(nonce.begin(), nonce.end());
  const Digest digest = sha256(text.data(), text.size());
  std::string name = std::string(1, kObject) + kPrefix;
  for (std::size_t i = 0; i < 12; ++i) {
    constexpr char kHex[] = "0123456789abcdef";
    name += {kHex[digest[i] >> 4U], kHex[digest[i] & 15U]};
  }
  return name;
}

void forget_segment(const std::string& name) { ::shm_unlink(name.c_str()); }

void remove_abandoned_segments(std::chrono::seconds youngest) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    const std::string name = kObject + entry.path().filename().string();
    if (name.rfind(kObject + std::string(kPrefix), 0) == 0 && is_abandoned(name, youngest)) forget_segment(name);
  }
}

Segment Segment::create(std::size_t bytes, const Nonce& nonce, const std::string& name) {
  remove_abandoned_segments(kYoungest);
  int fd = make_object(name, bytes);
  if (fd >= 0) {
    Segment segment;
    segment.address_ = name;
    segment.owner_ = true;
    segment.lock_ = fd;
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
      lock_(std::exchange(other.lock_, -1)),
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
    forget_segment(address_);
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

}  // namespace smddp
