#pragma once
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/spi/error_in.hpp"

namespace crossrank::spi {

/// Throws `UsageError` for a call on a group that this rank has closed.
inline void require_open_group(Transport const& transport, char const* operation, bool closed) {
  if (!closed) return;
  throw UsageError(error_in(
      transport,
      {.operation = operation, .message = "the group is closed", .hint = "keep the group open until its last call"}));
}

}  // namespace crossrank::spi
