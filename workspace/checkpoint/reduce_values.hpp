#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/dtype.hpp>

namespace crossrank::checkpoint {

/// Combines vectors of the same length element by element into the first one's place. Floating point and integers;
/// max, min and avg. NaN anywhere is NaN in the result. `UsageError` for other dtypes and operations.
void reduce_values(Dtype dtype, ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out);

/// Puts the sum of one element over all vectors into `out`. I32 and I64; `UsageError` for others.
void sum_element(Dtype dtype, std::size_t element, std::span<std::vector<std::byte> const> values,
                 std::span<std::byte> out);

/// One element as people write it: "0.25", "17"; hexadecimal for what is no number.
[[nodiscard]] std::string element_text(Dtype dtype, std::span<std::byte const> bytes, std::size_t element);

}  // namespace crossrank::checkpoint
