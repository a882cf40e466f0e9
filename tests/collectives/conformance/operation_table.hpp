#pragma once
#include <map>
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// By operation: "native" if the backend has an algorithm of its own, "composed" if it uses its other operations.
using OpSupport = std::map<std::string, std::string>;

/// Runs every operation of `Collective` on `world`, checks the results, and returns how the backend runs each.
/// Collective; closes the world.
[[nodiscard]] OpSupport measure_op_support(Collective const& world);

/// Returns the column of one backend in the operation table of docs/BACKENDS.md. Empty if there is no such column.
[[nodiscard]] OpSupport documented_ways(std::string const& backend);

}  // namespace crossrank::test
