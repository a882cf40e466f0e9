#pragma once
#include <map>
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// By operation: "native" where the backend moves the bytes in its own way, "composed" where its other operations do.
using OpSupport = std::map<std::string, std::string>;

/// Runs every operation of `Collective` on `world`, checks what comes of it, and says how the backend did it.
/// Collective; closes the world.
[[nodiscard]] OpSupport measure_op_support(Collective const& world);

/// Returns one backend's column of the table of operations in docs/BACKENDS.md. Empty when there is no such column.
[[nodiscard]] OpSupport documented_ways(std::string const& backend);

}  // namespace crossrank::test
