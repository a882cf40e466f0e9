#pragma once
#include <cerrno>

namespace crossrank::platform {

/// Repeats a system call that a signal interrupted, a bounded number of times.
template <class Call>
auto retry_interrupted(Call call) -> decltype(call()) {
  constexpr int attempts = 100;
  auto result = call();
  for (int attempt = 1; result < 0 && errno == EINTR && attempt < attempts; ++attempt) result = call();
  return result;
}

}  // namespace crossrank::platform
