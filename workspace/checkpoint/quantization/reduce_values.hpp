#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor/dtype.hpp>

namespace crossrank::checkpoint {

/// Reduces vectors of the same length element by element into `out`.
///
/// Supports max, min and avg of floating-point numbers and integers. NaN in any vector makes the result NaN. Throws
/// `UsageError` for other dtypes and operations.
void reduce_values(Dtype dtype, ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out);

/// The share of each rank's value in a sum, `of_rank[r] / whole`. Ranks that hold the same value share it.
struct Shares {
  std::vector<std::int64_t> of_rank{};
  std::int64_t whole = 1;
};

/// Sums one element over all vectors and copies all other elements, which must agree.
///
/// Supports I32 and I64. Throws `UsageError` for other dtypes, and `FormatError` if the other elements differ.
void sum_element(Dtype dtype, std::size_t element, std::span<std::vector<std::byte> const> values, Shares const& shares,
                 std::span<std::byte> out);

/// Returns one element as text: "0.25", "17"; hexadecimal if the dtype is not a number.
[[nodiscard]] std::string element_text(Dtype dtype, std::span<std::byte const> bytes, std::size_t element);

}  // namespace crossrank::checkpoint
