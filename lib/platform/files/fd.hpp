#pragma once
#include <cerrno>
#include <utility>

#include "lib/platform/system.hpp"

namespace crossrank::platform {

/// Owns a file descriptor and closes it through the seam.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      drop();
      fd_ = other.release();
    }
    return *this;
  }
  Fd(Fd const&) = delete;
  Fd& operator=(Fd const&) = delete;
  ~Fd() { drop(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }
  /// Gives up ownership and returns the descriptor.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes the descriptor and returns 0 or errno. It is closed in any case: Linux frees it even on `EINTR` and `EIO`.
  [[nodiscard]] int close() noexcept {
    if (!valid()) return 0;
    return system().close(release()) == 0 ? 0 : errno;
  }

 private:
  void drop() noexcept {
    if (!valid()) return;
    int const saved = errno;
    system().close(release());  // after writing, use close(), which reports errors
    errno = saved;
  }

  int fd_ = -1;
};

}  // namespace crossrank::platform
