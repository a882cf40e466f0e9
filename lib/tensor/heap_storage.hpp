#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include <crossrank/spi/storage.hpp>

#include "lib/device/borrowed_memory.hpp"

namespace crossrank {

/// Heap memory, aligned to 64 bytes, which the storage owns.
class HeapStorage final : public spi::Storage {
 public:
  /// Allocates the memory. `UnavailableError` when there is not enough.
  explicit HeapStorage(std::size_t bytes);
  [[nodiscard]] std::byte* data() noexcept override { return bytes_.get(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

/// Whole pages of the kernel, filled with zeros. The kernel gets them back at the end of the storage, where an
/// allocator would keep much of what is freed.
class PageStorage final : public spi::Storage {
 public:
  /// Maps the memory. `UnavailableError` when there is not enough.
  explicit PageStorage(std::size_t bytes);
  ~PageStorage() override;
  PageStorage(PageStorage const&) = delete;
  PageStorage& operator=(PageStorage const&) = delete;
  [[nodiscard]] std::byte* data() noexcept override { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return size_; }

 private:
  std::byte* bytes_ = nullptr;
  std::size_t size_;
};

/// The caller's memory, returned through the caller's deleter.
class BorrowedStorage final : public spi::Storage {
 public:
  BorrowedStorage(void* data, std::size_t bytes, std::function<void(void*)> deleter)
      : memory_(data, std::move(deleter)), size_(bytes) {}
  [[nodiscard]] std::byte* data() noexcept override { return memory_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return size_; }

 private:
  BorrowedMemory memory_;
  std::size_t size_;
};

}  // namespace crossrank
