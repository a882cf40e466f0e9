#pragma once
#include <cstdint>

#include <crossrank/dlpack.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns whether the elements follow each other in row-major order.
[[nodiscard]] bool is_dense(dlpack::Tensor const& tensor) noexcept;

/// The elements that the strides reach, relative to the first one.
struct ReachedElements {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
/// Returns the range; nothing when it overflows. The tensor has elements.
[[nodiscard]] std::optional<ReachedElements> reached_elements(dlpack::Tensor const& tensor) noexcept;

/// Copies a tensor of whole bytes into the dense `to` on the same device: between host memory at once, on a GPU in the
/// order of its current stream, by one copy of the driver or one kernel. A GPU without the library's kernels needs a
/// copy for each index of the outer dimensions. `element` is the first element.
void copy_strided(Tensor const& to, dlpack::Tensor const& from, std::byte const* element);

}  // namespace crossrank
