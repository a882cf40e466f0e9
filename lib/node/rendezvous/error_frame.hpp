#pragma once
#include <crossrank/error.hpp>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/rendezvous/frames.hpp"

namespace crossrank::node {

/// Makes `frame` carry an error: its code, its texts and all failed ranks.
void put_error(Frame& frame, Error const& error);

/// The error that a frame carries, as this rank throws it. Nothing in the frame is taken at its word.
[[nodiscard]] Error error_in(Frame const& frame, NodeOptions const& options);

/// Throws `error` as the error of this rank: the subclass of its code, with this rank's number.
[[noreturn]] void throw_as_own(Error const& error, NodeOptions const& options);

/// What was thrown as an `Error`: exceptions of the standard library become an `IoError` with their text. Call it in a
/// handler.
[[nodiscard]] Error current_start_error(NodeOptions const& options);

}  // namespace crossrank::node
