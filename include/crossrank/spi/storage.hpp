#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <crossrank/device.hpp>
#include <crossrank/export.hpp>

namespace crossrank {
class Shape;
class Stream;
class Tensor;
enum class Dtype : std::uint8_t;
}  // namespace crossrank

namespace crossrank::spi {

/// Memory that tensors view: heap, mapping, arena slot, lease or device. It ends with the last tensor that views it.
///
/// Backends derive from it. The members are called from any thread and never block.
class CROSSRANK_EXPORT Storage {
 public:
  /// For derived classes.
  Storage() = default;
  /// Frees the memory. Device memory is freed after the streams that have used it have passed.
  virtual ~Storage();
  Storage(Storage const&) = delete;
  Storage& operator=(Storage const&) = delete;

  /// Returns the first byte, fixed for the storage's life; may be null when there are none.
  [[nodiscard]] virtual std::byte* data() noexcept = 0;
  /// Returns the number of bytes.
  [[nodiscard]] virtual std::size_t size_bytes() const noexcept = 0;
  /// Returns where the bytes are.
  [[nodiscard]] virtual Device device() const noexcept;
  /// Returns who keeps the bytes from being written, as text ("published to rank 0 of group tp"); empty when they
  /// may be written.
  [[nodiscard]] virtual std::string frozen_by() const;
  /// Returns why the bytes may not be used any more, as text ("the parameter was resharded"); empty while they may.
  [[nodiscard]] virtual std::string revoked_by() const;
  /// Returns the rank that died or left and thereby revoked the bytes, if that is the reason. Their use is then a
  /// `PeerLostError`.
  [[nodiscard]] virtual std::optional<int> revoked_by_rank() const;
  /// Notes that others hold the bytes as long as `who` returns a text, which `frozen_by` then returns. Returns whether
  /// the storage can note it.
  [[nodiscard]] virtual bool hold(std::function<std::string()> who);
  /// Returns whether this is host memory that devices copy directly, without staging.
  [[nodiscard]] virtual bool is_pinned() const noexcept;
  /// Notes that work that is enqueued on `stream` uses the bytes. Returns whether the storage frees them only after
  /// that work by itself. If not, the caller keeps the storage alive: see `DeviceProvider::keep_alive`.
  [[nodiscard]] virtual bool used_on(Stream const& stream);
};

/// Makes a tensor that views `storage` from `byte_offset` on, dense and row-major. Copies nothing. `UsageError` when it
/// does not lie inside the storage.
[[nodiscard]] CROSSRANK_EXPORT Tensor tensor_from_storage(std::shared_ptr<Storage> storage, std::size_t byte_offset,
                                                          Shape const& shape, Dtype dtype);

}  // namespace crossrank::spi
