#pragma once
#include <string>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/error.hpp>

namespace crossrank {

/// Throws the `UsageError` of a call that a forked child made with an object of `rank_process`, its parent.
[[noreturn]] inline void refuse_forked_child(char const* operation, pid_t rank_process, char const* hint) {
  throw UsageError({.operation = operation,
                    .message = "a forked child is not a rank",
                    .expected = "a call from pid " + std::to_string(rank_process),
                    .got = "pid " + std::to_string(::getpid()),
                    .hint = hint});
}

}  // namespace crossrank
