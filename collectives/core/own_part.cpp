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

namespace {

[[noreturn]] void end_with(Collective const& group, char const* operation, UnavailableError const& error) {
  auto info = own_part_failure(error, operation, *group.transport());
  info.group_usable = false;
  UnavailableError const failure(std::move(info));
  group.abort(std::string("there is no memory for its part of a call: ") + failure.what());
  throw failure;
}

}  // namespace

UnavailableError not_enough_memory() {
  return UnavailableError(
      {.message = "not enough memory", .hint = "exchange less at once, or give the process more memory (ulimit -v)"});
}

void end_without_memory(Collective const& group, char const* operation) {
  end_with(group, operation, not_enough_memory());
}

Tensor allocate_result(Collective const& group, char const* operation, std::function<Tensor()> const& allocate) {
  try {
    return allocate();
  } catch (UnavailableError const& e) {
    end_with(group, operation, e);
  }
}

}  // namespace crossrank
