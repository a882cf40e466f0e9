#pragma once
#include <cstddef>
#include <span>

#include <crossrank/collective.hpp>

namespace crossrank::algorithms {

/// Combines `ranks` equal parts of `all`, in rank order, into `out`; none of them is aligned to anything.
using Reducer = void (*)(std::span<std::byte> out, std::span<std::byte const> all, int ranks);

/// The reducer of integers, F32 and F64. `UsageError` that says which dtypes and ops there are for anything else.
[[nodiscard]] Reducer reducer(Dtype dtype, ReduceOp op);

}  // namespace crossrank::algorithms
