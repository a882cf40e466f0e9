#pragma once
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::spi {

/// Returns `info` with the group's name, this rank and the number of ranks.
[[nodiscard]] inline ErrorInfo error_in(Transport const& transport, ErrorInfo info) {
  info.group = transport.name();
  info.rank = transport.rank();
  info.world_size = transport.world_size();
  return info;
}

}  // namespace crossrank::spi
