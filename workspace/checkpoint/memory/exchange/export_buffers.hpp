#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace crossrank::checkpoint {

/// The memory of one rank for the bytes of an export: a few large buffers that are used again, and short-lived blocks.
///
/// Limits how many buffers exist, and counts all bytes. Thread-safe. A handle of memory keeps the rest alive.
class ExportBuffers : public std::enable_shared_from_this<ExportBuffers> {
 public:
  /// Memory with a size.
  struct Memory {
    std::shared_ptr<std::byte> data{};
    std::size_t bytes = 0;
    [[nodiscard]] std::span<std::byte> first(std::size_t count) const { return {data.get(), count}; }
  };

  /// At most `max` buffers exist at a time.
  explicit ExportBuffers(std::size_t max) : max_(max) {}

  /// Takes a buffer of at least `bytes`. Blocks for at most `limit` while all are in use; then returns no memory.
  [[nodiscard]] Memory take(std::size_t bytes, std::chrono::milliseconds limit);
  /// Allocates a block.
  [[nodiscard]] Memory allocate(std::size_t bytes);
  /// Blocks for at most `limit` until the blocks in use have at most `bytes` bytes. Returns whether they have.
  [[nodiscard]] bool wait_for_blocks(std::size_t bytes, std::chrono::milliseconds limit);
  /// Returns the largest number of bytes that existed at a time.
  [[nodiscard]] std::size_t peak_bytes() const;
  /// Returns the same for all exports since the process started, for tests.
  [[nodiscard]] static std::size_t process_peak_bytes() noexcept;

 private:
  void count(std::size_t more);
  void give_back(std::unique_ptr<std::byte[]> data, std::size_t bytes);

  struct Idle {
    std::unique_ptr<std::byte[]> data{};
    std::size_t bytes = 0;
  };
  std::size_t max_;
  mutable std::mutex mutex_{};
  std::condition_variable freed_{};
  std::vector<Idle> idle_{};
  std::size_t in_use_ = 0;  ///< buffers
  std::size_t block_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace crossrank::checkpoint
