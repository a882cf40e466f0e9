#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

namespace crossrank::device {

/// Page-locked host memory that the staged calls of one group use again and again. Any thread.
class StagingBuffers {
 public:
  /// A piece of that memory.
  struct Buffer {
    std::shared_ptr<spi::Storage> storage{};
    Event last_use{};  ///< of the device; the host may write the memory once it has passed
  };

  explicit StagingBuffers(Device::Kind kind) : kind_(kind) {}

  /// Returns a buffer of at least `bytes` bytes that no copy uses any more. Allocates one when none is idle.
  [[nodiscard]] Buffer take(std::size_t bytes);
  /// Takes a buffer back. The device may still use it until `last_use`.
  void give_back(Buffer buffer, Event last_use);

 private:
  Device::Kind kind_;
  std::mutex mutex_{};  ///< guards `idle_`
  std::vector<Buffer> idle_{};
};

}  // namespace crossrank::device
