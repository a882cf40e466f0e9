#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <crossrank/tensor.hpp>

#include "collectives/message_queue/message_storage.hpp"
#include "lib/node/queue/message_parts.hpp"

namespace crossrank::queue {

/// The header of a tensor in a message. Its size aligns the tensor's bytes to a cache line.
struct TensorHead {
  std::uint64_t magic;
  std::uint32_t dtype;
  std::uint32_t dimensions;
  std::array<std::int64_t, Shape::max_rank> lengths;
  std::uint64_t device_kind;
  std::array<std::uint64_t, 5> unused;
};
static_assert(sizeof(TensorHead) == 192);

/// Throws `UsageError` when the tensor cannot be read now: see `require_readable`.
[[nodiscard]] TensorHead head_of(Tensor const& tensor);
/// Returns the tensor's bytes as a part of a message. The tensor must outlive it.
[[nodiscard]] node::MessagePart part_of(Tensor const& tensor);
/// Decodes a tensor. On the CPU, with an owner it is a read-only view of the message, and without one it is a copy. A
/// tensor of a GPU is copied to this rank's own. Throws `FormatError` when the message is not a complete tensor, and
/// any error of `TensorMover::move`.
[[nodiscard]] Tensor read_tensor(std::span<std::byte const> message, KeptMessage const& kept);

}  // namespace crossrank::queue
