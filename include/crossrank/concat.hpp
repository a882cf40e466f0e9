#pragma once
#include <concepts>
#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// A copy of `length` entries of dimension `dim` from `begin` on.
///
/// Local; copies what is cut out, once. `UsageError` when there is no such dimension or range, or when the cut falls
/// inside a byte (dtypes narrower than a byte).
[[nodiscard]] CROSSRANK_EXPORT Tensor slice(Tensor const& tensor, Dim dim, std::int64_t begin, std::int64_t length);

/// Joins tensors along a dimension, as `torch.cat`; their lengths may differ there.
///
/// Local; copies each byte once. `UsageError` when there are none, one is absent, dtypes or the other dimensions
/// differ, or a seam falls inside a byte; it names the number of the part and both shapes.
[[nodiscard]] CROSSRANK_EXPORT Tensor concat(std::span<Tensor const> parts, Dim dim = {});

/// The same for any range of tensors.
template <std::ranges::input_range R>
requires(std::same_as<std::ranges::range_value_t<R>, Tensor> && !std::convertible_to<R, std::span<Tensor const>>)
    [[nodiscard]] Tensor concat(R&& parts, Dim dim = {}) {
  std::vector<Tensor> held;
  for (auto&& part : parts) held.push_back(part);
  return concat(std::span<Tensor const>(held), dim);
}

}  // namespace crossrank
