#pragma once

namespace crossrank::checkpoint {

/// Names of operations in errors, where several files take part in one.
inline constexpr char const* open_operation = "checkpoint open";
inline constexpr char const* read_operation = "checkpoint read";
inline constexpr char const* plan_operation = "merge plan";
inline constexpr char const* write_operation = "checkpoint write";

}  // namespace crossrank::checkpoint
