#pragma once
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/spi/error_in.hpp"

namespace crossrank::spi {

/// Throws `UsageError` when a collective is posted before the one ahead of it has ended. `GroupState` puts the
/// collectives of a group in sequence; transports only refuse what comes out of it.
inline void require_one_collective(Transport const& transport, char const* operation, bool under_way) {
  if (!under_way) return;
  throw UsageError(error_in(
      transport, {.operation = operation,
                  .message = "another collective of this transport has not ended",
                  .hint = "wait for its request first, or start collectives by Collective, which puts them in order"}));
}

}  // namespace crossrank::spi
