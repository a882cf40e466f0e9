#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/dtype.hpp>

namespace crossrank::checkpoint {

/// Combines vectors of the same length element by element into the first one's place. Floating point and integers;
/// max, min and avg. NaN anywhere is NaN in the result. `UsageError` for other dtypes and operations.
void reduce_values(Dtype dtype, ReduceOp op, std::span<std::vector<std::byte> const> values, std::span<std::byte> out);

/// How much of each rank's value counts, where others hold the same: `of_rank[r]` out of `whole`.
struct Shares {
  std::vector<std::int64_t> of_rank{};
  std::int64_t whole = 1;
};

/// Makes one vector in which one element is the sum over all and every other one is what all agree on. I32 and I64;
/// `UsageError` for others, `FormatError` where they do not agree.
void sum_element(Dtype dtype, std::size_t element, std::span<std::vector<std::byte> const> values, Shares const& shares,
                 std::span<std::byte> out);

/// One element as people write it: "0.25", "17"; hexadecimal for what is no number.
[[nodiscard]] std::string element_text(Dtype dtype, std::span<std::byte const> bytes, std::size_t element);

}  // namespace crossrank::checkpoint
