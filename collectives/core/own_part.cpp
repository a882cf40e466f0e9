#include "collectives/core/own_part.hpp"

#include <string>
#include <utility>

#include "collectives/spi/error_in.hpp"

namespace crossrank {

ErrorInfo own_part_failure(Error const& error, char const* operation, spi::Transport const& transport) {
  auto info = error_in(transport, error.info());
  if (!info.operation.empty() && info.operation != operation) info.message = info.operation + ": " + info.message;
  info.operation = operation;
  if (info.failed_ranks.empty()) info.failed_ranks = {info.rank};
  return info;
}

Tensor allocate_result(Collective const& group, char const* operation, std::function<Tensor()> const& allocate) {
  try {
    return allocate();
  } catch (UnavailableError const& e) {
    auto info = own_part_failure(e, operation, *group.transport());
    info.group_usable = false;
    UnavailableError const failure(std::move(info));
    group.abort("rank " + std::to_string(group.rank()) + " has no memory for its part of a call: " + failure.what());
    throw failure;
  }
}

}  // namespace crossrank
