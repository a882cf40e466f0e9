#include "collectives/as_called.hpp"

namespace crossrank {

void throw_as_called(Error const& error, char const* operation) {
  auto info = error.info();
  info.operation = operation;
  throw_error(error.code(), std::move(info));
}

}  // namespace crossrank
