#pragma once
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns the fields of an error that keeps this rank from doing its part of a call. They name the call, the rank and
/// the group.
[[nodiscard]] ErrorInfo own_part_failure(Error const& error, char const* operation, spi::Transport const& transport);

/// Returns the error of a rank without memory for its part of a call.
[[nodiscard]] UnavailableError not_enough_memory();

/// Thrown by a part of a call that has no memory for its buffer.
struct NoBufferMemory {
  UnavailableError error;
};

/// Kills the group because this rank has no memory for its part of a call, and throws an `UnavailableError`.
[[noreturn]] void end_without_memory(Collective const& group, char const* operation);

/// Runs this rank's part of a call that the other ranks are in, outside of the lock of the call. They would wait for a
/// rank that has no memory: see `end_without_memory`.
template <class Work>
decltype(auto) run_own_part(Collective const& group, char const* operation, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (std::bad_alloc const&) {
    end_without_memory(group, operation);
  } catch (std::length_error const&) {  // more than a vector can hold
    end_without_memory(group, operation);
  }
}

/// Runs `allocate`, which gets the memory for the result of a collective. The other ranks would wait for a rank that
/// has none: an `UnavailableError` kills the group.
[[nodiscard]] Tensor allocate_result(Collective const& group, char const* operation,
                                     std::function<Tensor()> const& allocate);

}  // namespace crossrank
