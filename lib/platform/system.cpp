#include "lib/platform/system.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/platform/files/above_standard_streams.hpp"

namespace crossrank::platform {
namespace {

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;

timespec to_timespec(std::chrono::nanoseconds duration) {
  auto const count = duration.count() < 0 ? 0 : duration.count();
  return {.tv_sec = static_cast<time_t>(count / nanoseconds_per_second),
          .tv_nsec = static_cast<long>(count % nanoseconds_per_second)};
}

/// The operating system. It outlives every static destructor, because handles closed at exit need it.
constinit NoDestructor<System> real;
constinit std::atomic<System*> installed{nullptr};

/// Reads /dev/urandom: kernels before 3.17 and strict seccomp filters do not have getrandom.
int random_from_device(std::span<std::byte> out) {
  int const fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = 0;
  while (!out.empty() && result == 0) {
    auto const got = ::read(fd, out.data(), out.size());
    if (got > 0) {
      out = out.subspan(as_size(got));
    } else if (got == 0) {
      errno = EIO;
      result = -1;
    } else if (errno != EINTR) {
      result = -1;
    }
  }
  int const saved = errno;
  ::close(fd);  // opened only for reading, so an error loses nothing
  errno = saved;
  return result;
}

/// Blocks the signal for a file that would grow beyond `ulimit -f`, so that the call returns EFBIG and the process
/// lives.
class WithoutSizeSignal {
 public:
  WithoutSizeSignal() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    limited_ = ::pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0;
  }
  ~WithoutSizeSignal() {
    if (!limited_ || sigismember(&before_, SIGXFSZ) == 1) return;
    int const saved = errno;
    timespec const now{};
    ::sigtimedwait(&signal_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }
  WithoutSizeSignal(WithoutSizeSignal const&) = delete;
  WithoutSizeSignal& operator=(WithoutSizeSignal const&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
  bool limited_ = false;
};

}  // namespace

int System::openat(int directory, char const* path, int flags, mode_t mode) {
  return above_standard_streams(::openat(directory, path, flags | O_CLOEXEC, mode));
}
int System::close(int fd) { return ::close(fd); }
ssize_t System::read(int fd, void* to, std::size_t bytes) { return ::read(fd, to, bytes); }
ssize_t System::pread(int fd, void* to, std::size_t bytes, off_t at) { return ::pread(fd, to, bytes, at); }
ssize_t System::write(int fd, void const* from, std::size_t bytes) {
  WithoutSizeSignal const quiet;
  return ::write(fd, from, bytes);
}
ssize_t System::pwrite(int fd, void const* from, std::size_t bytes, off_t at) {
  WithoutSizeSignal const quiet;
  return ::pwrite(fd, from, bytes, at);
}
int System::fsync(int fd) { return ::fsync(fd); }
int System::fstat(int fd, struct stat* out) { return ::fstat(fd, out); }
int System::fstatat(int directory, char const* path, struct stat* out, int flags) {
  return ::fstatat(directory, path, out, flags);
}
int System::fallocate(int fd, int mode, off_t at, off_t bytes) {
  WithoutSizeSignal const quiet;
  return ::fallocate(fd, mode, at, bytes);
}
int System::ftruncate(int fd, off_t bytes) {
  WithoutSizeSignal const quiet;
  return ::ftruncate(fd, bytes);
}
int System::linkat(int from_directory, char const* from, int to_directory, char const* to) {
  return ::linkat(from_directory, from, to_directory, to, 0);
}
int System::renameat(int from_directory, char const* from, int to_directory, char const* to) {
  return ::renameat(from_directory, from, to_directory, to);
}
int System::unlinkat(int directory, char const* path, int flags) { return ::unlinkat(directory, path, flags); }
int System::mkdirat(int directory, char const* path, mode_t mode) { return ::mkdirat(directory, path, mode); }
int System::flock(int fd, int operation) { return ::flock(fd, operation); }
int System::fstatvfs(int fd, struct statvfs* out) { return ::fstatvfs(fd, out); }
int System::sync_file_range(int fd, off_t at, off_t bytes, unsigned flags) {
  return ::sync_file_range(fd, at, bytes, flags);
}

int System::memfd_create(char const* name, unsigned flags) {
  // by number, because old C libraries do not have the wrapper
  int const fd = above_standard_streams(static_cast<int>(::syscall(SYS_memfd_create, name, flags | MFD_CLOEXEC)));
  // It begins with access for all users, who could open it in /proc.
  if (fd >= 0) static_cast<void>(::fchmod(fd, S_IRUSR | S_IWUSR));
  return fd;
}
int System::add_seals(int fd, int seals) { return ::fcntl(fd, F_ADD_SEALS, seals); }
int System::shm_open(char const* name, int flags, mode_t mode) {
  return above_standard_streams(::shm_open(name, flags, mode));
}
int System::shm_unlink(char const* name) { return ::shm_unlink(name); }
int System::madvise(void* at, std::size_t bytes, int advice) { return ::madvise(at, bytes, advice); }

int System::socket(int domain, int type, int protocol) {
  return above_standard_streams(::socket(domain, type | SOCK_CLOEXEC, protocol));
}
int System::bind(int fd, sockaddr const* address, socklen_t bytes) { return ::bind(fd, address, bytes); }
int System::listen(int fd, int backlog) { return ::listen(fd, backlog); }
int System::accept(int fd) { return above_standard_streams(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC)); }
int System::connect(int fd, sockaddr const* address, socklen_t bytes) { return ::connect(fd, address, bytes); }
ssize_t System::sendmsg(int fd, msghdr const* message, int flags) { return ::sendmsg(fd, message, flags); }
ssize_t System::recvmsg(int fd, msghdr* message, int flags) { return ::recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC); }
int System::getsockopt(int fd, int level, int name, void* value, socklen_t* bytes) {
  return ::getsockopt(fd, level, name, value, bytes);
}
int System::poll(pollfd* fds, nfds_t count, int timeout_ms) { return ::poll(fds, count, timeout_ms); }

int System::futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) {
  auto const timeout = to_timespec(limit);
  return static_cast<int>(::syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0));
}
int System::futex_wake(std::uint32_t const* word, int count) {
  return static_cast<int>(::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0));
}
void System::yield() { ::sched_yield(); }

void System::sleep(std::chrono::nanoseconds duration) {
  auto left = to_timespec(duration);
  while (::clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

std::chrono::nanoseconds System::now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);  // cannot fail: the clock exists and the pointer is valid
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

int System::random(std::span<std::byte> out) {
  while (!out.empty()) {
    auto const got = ::getrandom(out.data(), out.size(), 0);
    if (got >= 0) {
      out = out.subspan(as_size(got));
    } else if (errno == ENOSYS || errno == EPERM) {
      return random_from_device(out);
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

int System::set_robust_list(void* head, std::size_t bytes) {
  return static_cast<int>(::syscall(SYS_set_robust_list, head, bytes));
}

System& system() noexcept {
  // pairs with the release store in ScopedSystem, so that the replacement is fully constructed
  auto* const replacement = installed.load(std::memory_order_acquire);
  return replacement != nullptr ? *replacement : real.value;
}

ScopedSystem::ScopedSystem(System& replacement) noexcept
    : previous_(installed.exchange(&replacement, std::memory_order_acq_rel)) {}
ScopedSystem::~ScopedSystem() { installed.store(previous_, std::memory_order_release); }

}  // namespace crossrank::platform
