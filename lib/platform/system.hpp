#pragma once
#include <cstddef>
#include <cstdint>
#include <chrono>
#include <span>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

namespace crossrank::platform {

/// The replaceable table of system calls that can fail for reasons outside the program.
///
/// A member behaves as the system call of the same name: -1 and `errno` on failure, including `EINTR`. A test derives
/// from `System`, overrides the calls that should fail, be delayed or be recorded, and installs the object with
/// `ScopedSystem`.
class System {
 public:
  virtual ~System() = default;

  // files
  virtual int openat(int directory, char const* path, int flags, mode_t mode);
  virtual int close(int fd);
  virtual ssize_t read(int fd, void* to, std::size_t bytes);
  virtual ssize_t pread(int fd, void* to, std::size_t bytes, off_t at);
  virtual ssize_t write(int fd, void const* from, std::size_t bytes);
  virtual ssize_t pwrite(int fd, void const* from, std::size_t bytes, off_t at);
  virtual int fsync(int fd);
  virtual int fstat(int fd, struct stat* out);
  virtual int fstatat(int directory, char const* path, struct stat* out, int flags);
  virtual int fallocate(int fd, int mode, off_t at, off_t bytes);
  virtual int ftruncate(int fd, off_t bytes);
  virtual int linkat(int from_directory, char const* from, int to_directory, char const* to);
  virtual int renameat(int from_directory, char const* from, int to_directory, char const* to);
  virtual int unlinkat(int directory, char const* path, int flags);
  virtual int mkdirat(int directory, char const* path, mode_t mode);
  virtual int flock(int fd, int operation);
  virtual int fstatvfs(int fd, struct statvfs* out);
  virtual int sync_file_range(int fd, off_t at, off_t bytes, unsigned flags);

  // memory
  virtual int memfd_create(char const* name, unsigned flags);
  virtual int add_seals(int fd, int seals);
  virtual int shm_open(char const* name, int flags, mode_t mode);
  virtual int shm_unlink(char const* name);
  virtual int madvise(void* at, std::size_t bytes, int advice);

  // sockets: abstract UNIX stream sockets and the descriptors they carry
  virtual int socket(int domain, int type, int protocol);
  virtual int bind(int fd, sockaddr const* address, socklen_t bytes);
  virtual int listen(int fd, int backlog);
  virtual int accept(int fd);
  virtual int connect(int fd, sockaddr const* address, socklen_t bytes);
  virtual ssize_t sendmsg(int fd, msghdr const* message, int flags);
  virtual ssize_t recvmsg(int fd, msghdr* message, int flags);
  virtual int getsockopt(int fd, int level, int name, void* value, socklen_t* bytes);
  virtual int poll(pollfd* fds, nfds_t count, int timeout_ms);

  // waiting, time, random numbers
  /// Sleeps while `*word == expected`, at most for `limit`. Works between processes. Returns as FUTEX_WAIT: 0, or -1
  /// with errno.
  virtual int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit);
  /// Wakes up to `count` sleepers and returns how many. Works between processes, as FUTEX_WAKE.
  virtual int futex_wake(std::uint32_t const* word, int count);
  virtual void yield();
  /// Sleeps in the calling thread. Retry loops with a deadline use it; tests can make it return at once.
  virtual void sleep(std::chrono::nanoseconds duration);
  /// Returns the monotonic time since an arbitrary start.
  virtual std::chrono::nanoseconds now();
  /// Fills `out` from the system's random source.
  virtual int random(std::span<std::byte> out);
  /// Calls `set_robust_list` for the calling thread.
  virtual int set_robust_list(void* head, std::size_t bytes);
};

/// Returns the current table: the operating system, or the replacement of a `ScopedSystem`.
[[nodiscard]] System& system() noexcept;

/// Installs a replacement for the scope of a test. Not thread-safe: install it before ranks start.
class ScopedSystem {
 public:
  explicit ScopedSystem(System& replacement) noexcept;
  ~ScopedSystem();
  ScopedSystem(ScopedSystem const&) = delete;
  ScopedSystem& operator=(ScopedSystem const&) = delete;

 private:
  System* previous_;
};

}  // namespace crossrank::platform
