#pragma once
#include <cstddef>
#include <string>

namespace crossrank::tools {

/// Bytes on their way to a descriptor whose reader may be slow: written only when that does not block.
class OutputQueue {
 public:
  /// With more than this waiting the ranks are not read from, so that they wait as they would at a full pipe.
  static constexpr std::size_t high_water = 1U << 20U;

  explicit OutputQueue(int fd) noexcept : fd_(fd) {}
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// Append here.
  [[nodiscard]] std::string& waiting() noexcept { return waiting_; }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  [[nodiscard]] bool full() const noexcept { return waiting_.size() > high_water; }
  /// The reader is gone, or nothing can be written: what is added is dropped.
  [[nodiscard]] bool broken() const noexcept { return failure_ != 0; }
  /// errno of the write that failed; 0 while all is well.
  [[nodiscard]] int failure() const noexcept { return failure_; }
  /// Writes as long as `poll` says that there is space.
  void flush();

 private:
  int fd_;
  int failure_ = 0;
  std::string waiting_;
};

}  // namespace crossrank::tools
