#pragma once
#include <string_view>
#include <utility>

#include <crossrank/collective/reduce_op.hpp>

#include "options.hpp"

namespace crossrank::python {

inline constexpr std::pair<char const*, ReduceOp> reduce_ops[] = {
    {"sum", ReduceOp::sum}, {"prod", ReduceOp::prod}, {"min", ReduceOp::min}, {"max", ReduceOp::max},
    {"avg", ReduceOp::avg}, {"band", ReduceOp::band}, {"bor", ReduceOp::bor}, {"bxor", ReduceOp::bxor}};

/// Returns the reduction with this name. `UsageError` for another name.
[[nodiscard]] inline ReduceOp op_named(std::string_view name) { return named(reduce_ops, "op", name); }

inline constexpr std::pair<char const*, ReduceOrder> reduce_orders[] = {{"any", ReduceOrder::any},
                                                                        {"rank", ReduceOrder::rank}};

/// Returns the order of a reduction with this name. `UsageError` for another name.
[[nodiscard]] inline ReduceOrder order_named(std::string_view name) { return named(reduce_orders, "order", name); }

}  // namespace crossrank::python
