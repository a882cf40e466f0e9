#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

namespace crossrank::device {

/// Page-locked host memory that copies from and to a device use again and again. Any thread.
class StagingBuffers {
 public:
  /// A piece of that memory.
  struct Buffer {
    std::shared_ptr<spi::Storage> storage{};
    Event last_use{};  ///< of the device; the host may write the memory once it has passed
  };

  /// `enough`: number of buffers from which on `take` waits for the copy of an idle one rather than allocate another.
  explicit StagingBuffers(Device::Kind kind, std::size_t enough = ~std::size_t{0}) : kind_(kind), enough_(enough) {}
  /// Frees the buffers that no copy uses. The others stay until the end of a later store, so that nothing waits.
  ~StagingBuffers();
  StagingBuffers(StagingBuffers const&) = delete;
  StagingBuffers& operator=(StagingBuffers const&) = delete;

  /// Returns a buffer of at least `bytes` bytes that no copy uses any more. Allocates one when none is idle. Errors as
  /// for `Event::synchronize` when it waits.
  [[nodiscard]] Buffer take(std::size_t bytes);
  /// Takes a buffer back. The device may still use it until `last_use`.
  void give_back(Buffer buffer, Event last_use);
  /// Takes a buffer back that the device has not used since its `last_use`.
  void give_back(Buffer buffer);

 private:
  [[nodiscard]] std::optional<Buffer> take_idle(std::size_t bytes);

  Device::Kind kind_;
  std::size_t enough_;
  std::mutex mutex_{};          ///< guards the members below
  std::size_t made_ = 0;        ///< how many were allocated; a lost one counts too
  std::vector<Buffer> idle_{};  ///< in the order in which they were given back
};

/// Returns the buffers for copies that belong to no group: of files, of packed contributions, of uploads. They stay
/// until the process ends. A thread takes at most two at a time, of `staging_piece_bytes` each.
[[nodiscard]] StagingBuffers& process_staging(Device::Kind kind);

/// The length of a buffer for copies in pieces. Long enough for the full bandwidth of the bus.
inline constexpr std::size_t staging_piece_bytes = std::size_t{4} << 20;

}  // namespace crossrank::device
