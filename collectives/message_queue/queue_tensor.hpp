#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <crossrank/tensor.hpp>

namespace crossrank::queue {

/// The header of a tensor in a message. Its size aligns the tensor's bytes to a cache line.
struct TensorHead {
  std::uint64_t magic;
  std::uint32_t dtype;
  std::uint32_t dimensions;
  std::array<std::int64_t, Shape::max_rank> lengths;
  std::array<std::uint64_t, 6> unused;
};
static_assert(sizeof(TensorHead) == 192);

/// Throws `UsageError` when the tensor is undefined or not on the CPU.
[[nodiscard]] TensorHead head_of(Tensor const& tensor);
/// Decodes a tensor. With an owner it is a read-only view of the message; without one it is a copy. Throws
/// `FormatError` when the message is not a complete tensor.
[[nodiscard]] Tensor read_tensor(std::span<std::byte const> message, std::shared_ptr<void const> owner);

}  // namespace crossrank::queue
