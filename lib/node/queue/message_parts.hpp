#pragma once
#include <cstddef>
#include <span>

#include <crossrank/tensor.hpp>

#include "lib/tensor/transfer/staged_read.hpp"

namespace crossrank::node {

/// One part of a message: bytes of the host, or a tensor on a GPU, which is read while the message is written.
class MessagePart {
 public:
  /// The bytes must outlive the part.
  // NOLINTNEXTLINE(google-explicit-constructor): a part of most messages is a span
  MessagePart(std::span<std::byte const> bytes) noexcept : bytes_(bytes) {}
  /// The tensor must outlive the part.
  explicit MessagePart(Tensor const& on_gpu) noexcept : on_gpu_(&on_gpu) {}

  [[nodiscard]] std::size_t size() const noexcept { return on_gpu_ != nullptr ? on_gpu_->nbytes() : bytes_.size(); }
  /// Passes all bytes to `take`, in order. Errors as for `read_in_pieces`.
  void read(TakePiece const& take) const {
    if (on_gpu_ != nullptr) return read_in_pieces(*on_gpu_, take);
    take(bytes_);
  }

 private:
  std::span<std::byte const> bytes_{};
  Tensor const* on_gpu_ = nullptr;
};

/// A message in several parts.
using MessageParts = std::span<MessagePart const>;

}  // namespace crossrank::node
