#pragma once
#include <concepts>
#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Copies `length` entries of dimension `dim`, from `begin` on.
///
/// Local; copies the result's bytes once, on the tensor's device. `UsageError` when dimension or range does not exist,
/// or when the slice begins or ends inside a byte (dtypes narrower than a byte).
[[nodiscard]] CROSSRANK_EXPORT Tensor slice(Tensor const& tensor, Dim dim, std::int64_t begin, std::int64_t length);

/// Joins tensors along a dimension. Their lengths may differ only in that dimension.
///
/// Local; copies each byte once, on the device of the parts. `UsageError` when there are no parts, one is undefined,
/// devices, dtypes or other dimensions differ, or two parts would meet inside a byte; it gives the number of the part
/// and both shapes. Follows `torch.cat`.
[[nodiscard]] CROSSRANK_EXPORT Tensor concat(std::span<Tensor const> parts, Dim dim = {});

/// Joins any range of tensors along a dimension; costs and errors as for a span.
template <std::ranges::input_range R>
requires(std::same_as<std::ranges::range_value_t<R>, Tensor> && !std::convertible_to<R, std::span<Tensor const>>)
    [[nodiscard]] Tensor concat(R&& parts, Dim dim = {}) {
  std::vector<Tensor> held;
  for (auto&& part : parts) held.push_back(part);
  return concat(std::span<Tensor const>(held), dim);
}

}  // namespace crossrank
