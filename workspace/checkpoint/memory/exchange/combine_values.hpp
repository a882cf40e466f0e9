#pragma once
#include <cstddef>
#include <optional>
#include <span>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/collective/reduce_op.hpp>

namespace crossrank::checkpoint {

/// Combines the parts element by element, in their order, as `Collective::all_reduce` does. Copies a single part.
/// Throws `UsageError` if the dtype does not support the operation.
void combine_values(Dtype dtype, std::optional<ReduceOp> op, std::span<std::byte const* const> parts,
                    std::span<std::byte> out);

}  // namespace crossrank::checkpoint
