#pragma once
#include <utility>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

namespace crossrank {

/// Throws `error` again, under the name of the call that the user made.
[[noreturn]] void rethrow_with_operation_name(Error const& error, char const* operation);

/// Runs a step of a composite call. Errors name the call that the user made, not the operation beneath.
template <class Body>
decltype(auto) with_operation_name(char const* operation, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error const& e) {
    rethrow_with_operation_name(e, operation);
  }
}

/// Throws `UsageError` under the name of the call that the user made when the handle has no group, or when the group is
/// closed.
void require_open(Collective const& group, char const* operation);

}  // namespace crossrank
