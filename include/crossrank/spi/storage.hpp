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

/// Memory that tensors view: heap, mapping, arena slot, lease or device. It ends with the last tensor that views it.
///
/// Backends derive from it. The members are called from any thread and never block.
class CROSSRANK_EXPORT Storage {
 public:
  /// For derived classes.
  Storage() = default;
  /// Frees the memory.
  virtual ~Storage();
  Storage(Storage const&) = delete;
  Storage& operator=(Storage const&) = delete;

  /// Returns the first byte, fixed for the storage's life; may be null when there are none.
  [[nodiscard]] virtual std::byte* data() noexcept = 0;
  /// Returns the number of bytes.
  [[nodiscard]] virtual std::size_t size_bytes() const noexcept = 0;
  /// Returns where the bytes are.
  [[nodiscard]] virtual Device device() const noexcept;
  /// Returns who keeps the bytes from being written, for people ("published to rank 0 of group tp"); empty when they
  /// may be written.
  [[nodiscard]] virtual std::string frozen_by() const;
};

/// Makes a tensor that views `storage` from `byte_offset` on, dense and row-major. Copies nothing. `UsageError` when it
/// does not lie inside the storage.
[[nodiscard]] CROSSRANK_EXPORT Tensor tensor_from_storage(std::shared_ptr<Storage> storage, std::size_t byte_offset,
                                                          Shape const& shape, Dtype dtype);

}  // namespace crossrank::spi
