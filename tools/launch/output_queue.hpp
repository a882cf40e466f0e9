#pragma once
#include <cstddef>
#include <string>

namespace crossrank::tools {

/// Bytes that wait to be written to a descriptor. Writes only when that does not block.
class OutputQueue {
 public:
  /// Above this size the launcher stops reading from the ranks, so that they block as with a full pipe.
  static constexpr std::size_t high_water = 1U << 20U;

  explicit OutputQueue(int fd) noexcept : fd_(fd) {}
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// Returns the buffer to append to.
  [[nodiscard]] std::string& waiting() noexcept { return waiting_; }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  [[nodiscard]] bool full() const noexcept { return waiting_.size() > high_water; }
  /// Returns whether a write has failed. Bytes added after that are dropped.
  [[nodiscard]] bool broken() const noexcept { return failure_ != 0; }
  /// Returns the errno of the failed write, or 0.
  [[nodiscard]] int failure() const noexcept { return failure_; }
  /// Writes as long as `poll` reports space.
  void flush();

 private:
  int fd_;
  int failure_ = 0;
  std::string waiting_;
};

}  // namespace crossrank::tools
