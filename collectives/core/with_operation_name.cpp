#include "collectives/core/with_operation_name.hpp"

namespace crossrank {

void rethrow_with_operation_name(Error const& error, char const* operation) {
  auto info = error.info();
  info.operation = operation;
  throw_error(error.code(), std::move(info));
}

void require_open(Collective const& group, char const* operation) {
  with_operation_name(operation, [&] { static_cast<void>(group.rank()); });
}

}  // namespace crossrank
