#pragma once
#include <crossrank/error.hpp>

#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/rendezvous/frames.hpp"

namespace crossrank::node {

/// Encodes an error into `frame`: its code, its texts and all failed ranks.
void put_error(Frame& frame, Error const& error);

/// Decodes the error in a frame as this rank throws it. Trusts nothing in the frame.
[[nodiscard]] Error error_in(Frame const& frame, NodeOptions const& options);

/// Throws `error` with this rank's number, as the subclass of its code.
[[noreturn]] void throw_as_own(Error const& error, NodeOptions const& options);

/// Returns the current exception as an `Error`: exceptions of the standard library become an `IoError` with their text.
/// Call it in a handler.
[[nodiscard]] Error current_start_error(NodeOptions const& options);

}  // namespace crossrank::node
