#pragma once
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lib/core/as_size.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::test {

/// The calls that a `FaultySystem` counts and can fail.
enum class Call : std::size_t {
  openat,
  close,
  pread,
  write,
  pwrite,
  fsync,
  fstat,
  fstatat,
  fallocate,
  ftruncate,
  linkat,
  renameat,
  unlinkat,
  mkdirat,
  flock,
  random,
  count,
};

inline constexpr std::size_t call_count = as_index(Call::count);
inline constexpr std::array<char const*, call_count> call_names{
    "openat",    "close",     "pread",  "write",    "pwrite",   "fsync",   "fstat", "fstatat",
    "fallocate", "ftruncate", "linkat", "renameat", "unlinkat", "mkdirat", "flock", "random"};

/// A call that fails, and the error that it sets.
struct Fault {
  Call call = Call::pwrite;
  int error = EIO;
};

/// Returns the name of a fault for the name of a test.
inline std::string name_of(Fault const& fault) {
  return std::string(call_names.at(as_index(fault.call))) + "_" + ::strerrorname_np(fault.error);
}

/// An operating system with faults: the nth use of a call fails, transfers are cut short, and the clock can be faked.
///
/// All other calls go to the real system. `close` releases the descriptor even when it reports a failure, as Linux
/// does.
class FaultySystem : public platform::System {
 public:
  /// Makes use number `nth` (from 1) of `call` fail with `error`, and the `times` - 1 uses after it.
  void fail(Call call, int nth, int error, int times = 1) { plan_[index(call)] = {nth, error, times}; }
  /// Makes every use of `call` fail.
  void fail_always(Call call, int error) { fail(call, 1, error, always); }
  /// Limits each read and write to this many bytes. 0 means no limit.
  void limit_transfers(std::size_t bytes) { transfer_limit_ = bytes; }
  /// Stops the clock. Only `sleep` moves it, and returns at once.
  void fake_clock() { fake_ = true; }
  /// Called before each use of a call that names a file, with the name.
  std::function<void(Call, std::string const&)> on_name{};
  /// Called after each successful `fstat`; may edit the result.
  std::function<void(struct stat&)> on_fstat{};
  /// Called after each successful `fstatvfs`; may edit the result.
  std::function<void(struct statvfs&)> on_fstatvfs{};
  /// Called during each sleep, after the fake clock has moved.
  std::function<void()> on_sleep{};

  [[nodiscard]] int uses(Call call) const { return uses_[index(call)]; }
  [[nodiscard]] int sleeps() const { return sleeps_; }
  /// Returns all calls since the last `forget_uses`, in order.
  [[nodiscard]] std::vector<Call> const& history() const { return history_; }
  void forget_uses() {
    uses_.fill(0);
    history_.clear();
  }

  int openat(int directory, char const* path, int flags, mode_t mode) override {
    return fails(Call::openat, path) ? -1 : System::openat(directory, path, flags, mode);
  }
  int close(int fd) override {
    bool const failing = fails(Call::close);
    int const error = errno;
    int const result = System::close(fd);
    if (failing) errno = error;
    return failing ? -1 : result;
  }
  ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) override {
    return fails(Call::pread) ? -1 : System::pread(fd, to, truncate_transfer(bytes), at);
  }
  ssize_t write(int fd, void const* from, std::size_t bytes) override {
    return fails(Call::write) ? -1 : System::write(fd, from, truncate_transfer(bytes));
  }
  ssize_t pwrite(int fd, void const* from, std::size_t bytes, off_t at) override {
    return fails(Call::pwrite) ? -1 : System::pwrite(fd, from, truncate_transfer(bytes), at);
  }
  int fsync(int fd) override { return fails(Call::fsync) ? -1 : System::fsync(fd); }
  int fstat(int fd, struct stat* out) override {
    if (fails(Call::fstat)) return -1;
    int const result = System::fstat(fd, out);
    if (result == 0 && on_fstat) on_fstat(*out);
    return result;
  }
  int fstatvfs(int fd, struct statvfs* out) override {
    int const result = System::fstatvfs(fd, out);
    if (result == 0 && on_fstatvfs) on_fstatvfs(*out);
    return result;
  }
  int fstatat(int directory, char const* path, struct stat* out, int flags) override {
    return fails(Call::fstatat, path) ? -1 : System::fstatat(directory, path, out, flags);
  }
  int fallocate(int fd, int mode, off_t at, off_t bytes) override {
    return fails(Call::fallocate) ? -1 : System::fallocate(fd, mode, at, bytes);
  }
  int ftruncate(int fd, off_t bytes) override { return fails(Call::ftruncate) ? -1 : System::ftruncate(fd, bytes); }
  int linkat(int from_directory, char const* from, int to_directory, char const* to) override {
    return fails(Call::linkat, to) ? -1 : System::linkat(from_directory, from, to_directory, to);
  }
  int renameat(int from_directory, char const* from, int to_directory, char const* to) override {
    return fails(Call::renameat, to) ? -1 : System::renameat(from_directory, from, to_directory, to);
  }
  int unlinkat(int directory, char const* path, int flags) override {
    return fails(Call::unlinkat, path) ? -1 : System::unlinkat(directory, path, flags);
  }
  int mkdirat(int directory, char const* path, mode_t mode) override {
    return fails(Call::mkdirat, path) ? -1 : System::mkdirat(directory, path, mode);
  }
  int flock(int fd, int operation) override { return fails(Call::flock) ? -1 : System::flock(fd, operation); }
  int random(std::span<std::byte> out) override { return fails(Call::random) ? -1 : System::random(out); }
  void sleep(std::chrono::nanoseconds duration) override {
    ++sleeps_;
    if (fake_) {
      clock_ += duration;
    } else {
      System::sleep(duration);
    }
    if (on_sleep) on_sleep();
  }
  std::chrono::nanoseconds now() override { return fake_ ? clock_ : System::now(); }

 private:
  struct Plan {
    int nth = 0;
    int error = 0;
    int times = 0;
  };
  static constexpr int always = 1'000'000'000;
  static std::size_t index(Call call) { return as_index(call); }

  [[nodiscard]] std::size_t truncate_transfer(std::size_t bytes) const {
    return transfer_limit_ == 0 || bytes < transfer_limit_ ? bytes : transfer_limit_;
  }
  bool fails(Call call, char const* name = nullptr) {
    if (name != nullptr && on_name) on_name(call, name);
    std::lock_guard const lock(mutex_);
    int const use = ++uses_[index(call)];
    history_.push_back(call);
    auto const& plan = plan_[index(call)];
    if (plan.nth == 0 || use < plan.nth || use - plan.nth >= plan.times) return false;
    errno = plan.error;
    return true;
  }

  std::mutex mutex_{};
  std::array<int, call_count> uses_{};
  std::vector<Call> history_{};
  std::array<Plan, call_count> plan_{};
  std::size_t transfer_limit_ = 0;
  bool fake_ = false;
  std::chrono::nanoseconds clock_{std::chrono::hours(1)};
  std::atomic<int> sleeps_ = 0;  ///< a progress thread sleeps too
};

}  // namespace crossrank::test
