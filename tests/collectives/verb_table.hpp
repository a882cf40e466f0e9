#pragma once
#include <map>
#include <string>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// By verb: "native" where the backend moves the bytes in its own way, "composed" where its other verbs do.
using VerbWays = std::map<std::string, std::string>;

/// Runs every verb of `Collective` on `world`, checks what comes of it, and says how the backend did it. Collective;
/// closes the world.
[[nodiscard]] VerbWays ways_of_verbs(Collective const& world);

/// Returns one backend's column of the table of operations in docs/BACKENDS.md. Empty when there is no such column.
[[nodiscard]] VerbWays documented_ways(std::string const& backend);

}  // namespace crossrank::test
