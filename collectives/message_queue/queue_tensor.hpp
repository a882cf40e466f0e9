#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <crossrank/tensor.hpp>

namespace crossrank::queue {

/// What stands in front of a tensor's bytes in a message: so long that these begin on a cache line.
struct TensorHead {
  std::uint64_t magic;
  std::uint32_t dtype;
  std::uint32_t dimensions;
  std::array<std::int64_t, Shape::max_rank> lengths;
  std::array<std::uint64_t, 6> unused;
};
static_assert(sizeof(TensorHead) == 192);

/// `UsageError` when the tensor is none or not on the CPU.
[[nodiscard]] TensorHead head_of(Tensor const& tensor);
/// The tensor that `message` is. With an owner it views the message, which nobody may write; without it is a copy.
/// `FormatError` when the message is no tensor, whole.
[[nodiscard]] Tensor read_tensor(std::span<std::byte const> message, std::shared_ptr<void const> owner);

}  // namespace crossrank::queue
