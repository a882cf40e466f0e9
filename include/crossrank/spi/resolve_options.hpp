#pragma once
#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>

namespace crossrank::spi {

/// Returns `options` completed and overridden by the environment (`CROSSRANK_TIMEOUT`, `CROSSRANK_CHECK`,
/// `CROSSRANK_ARENA_CAP` and others). `operation` names the caller in errors. `UsageError` for a timeout that is not
/// positive.
[[nodiscard]] CROSSRANK_EXPORT ConnectOptions resolve_options(ConnectOptions options, char const* operation);

}  // namespace crossrank::spi
