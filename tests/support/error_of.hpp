#pragma once
#include <exception>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank::test {

/// Returns the error that `call` throws. Fails the test if it throws another exception or none.
template <class Kind, class Call>
Kind thrown(Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (Kind const& error) {
    return error;
  } catch (std::exception const& error) {
    ADD_FAILURE() << "unexpected exception: " << error.what();
  }
  if constexpr (std::is_constructible_v<Kind, ErrorInfo>) {
    return Kind(ErrorInfo{});
  } else {  // the base class
    return Kind(ErrorCode{}, ErrorInfo{});
  }
}

/// Returns the info of the error that `call` throws. Fails the test if it throws another exception or none.
template <class Kind, class Call>
ErrorInfo error_of(Call&& call) {
  auto const error = thrown<Kind>(call);
  auto info = error.info();
  info.group_usable = error.group_usable();
  return info;
}

/// Returns the text of the error that `call` throws, or "accepted".
template <class Kind = Error, class Call>
std::string refusal_of(Call&& call) {
  try {
    call();
  } catch (Kind const& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace crossrank::test
