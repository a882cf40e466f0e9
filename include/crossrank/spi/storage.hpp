#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include <crossrank/device.hpp>
#include <crossrank/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/shape.hpp>

namespace crossrank {
class Tensor;
}

namespace crossrank::spi {

/// Memory that tensors view: heap, mapping, arena slot, lease, device. It ends with the last tensor that views it.
///
/// Backends derive from it. The members are called from any thread and never block.
class CROSSRANK_EXPORT Storage {
 public:
  Storage() = default;
  virtual ~Storage();
  Storage(Storage const&) = delete;
  Storage& operator=(Storage const&) = delete;

  /// First byte; may be null when there are none. Fixed for the storage's life.
  [[nodiscard]] virtual std::byte* data() noexcept = 0;
  [[nodiscard]] virtual std::size_t size_bytes() const noexcept = 0;
  [[nodiscard]] virtual Device device() const noexcept;
  /// Who keeps the bytes from being written, for people ("published to rank 0 of group tp"); empty when they may be.
  [[nodiscard]] virtual std::string frozen_by() const;
};

/// A tensor that views `storage` from `byte_offset` on, dense and row-major. Copies nothing.
/// `UsageError` when it does not lie inside the storage.
[[nodiscard]] CROSSRANK_EXPORT Tensor tensor_over(std::shared_ptr<Storage> storage, std::size_t byte_offset,
                                                  Shape const& shape, Dtype dtype);

}  // namespace crossrank::spi
