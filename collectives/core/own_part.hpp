#pragma once
#include <functional>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns the fields of an error that keeps this rank from doing its part of a call. They name the call, the rank and
/// the group.
[[nodiscard]] ErrorInfo own_part_failure(Error const& error, char const* operation, spi::Transport const& transport);

/// Runs `allocate`, which gets the memory for the result of a collective. The other ranks would wait for a rank that
/// has none: an `UnavailableError` kills the group.
[[nodiscard]] Tensor allocate_result(Collective const& group, char const* operation,
                                     std::function<Tensor()> const& allocate);

}  // namespace crossrank
