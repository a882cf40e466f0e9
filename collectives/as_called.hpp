#pragma once
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank {

/// Throws `error` again, under the name of the call that the user made.
[[noreturn]] void throw_as_called(Error const& error, char const* operation);

/// Runs what a call is made of: its errors name the call that the user made, not the verb beneath.
template <class Body>
decltype(auto) as_called(char const* operation, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error const& e) {
    throw_as_called(e, operation);
  }
}

}  // namespace crossrank
