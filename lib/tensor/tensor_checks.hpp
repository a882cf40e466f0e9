#pragma once
#include <string>

#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Throws the `UsageError` for a tensor that is undefined. `info` has the operation and what else the caller knows. Its
/// message, if any, says which tensor it is, and precedes the text of this error.
[[noreturn]] void throw_undefined(ErrorInfo info);

/// Throws the error of the use of a tensor whose memory was revoked: `PeerLostError` when its owner has gone, else
/// `UsageError`.
[[noreturn]] void throw_revoked(Tensor const& tensor, char const* operation, std::string why);

/// Throws `UsageError` for a tensor that is undefined or whose memory was given back.
void require_usable(Tensor const& tensor, char const* operation);

/// Throws `UsageError` for a tensor that is not usable, and while others hold its bytes. It names them. A graph that is
/// being captured then refuses replays while others hold them.
void require_writable(Tensor const& tensor, char const* operation);

/// Throws `UsageError` for a tensor that cannot be read now: not usable, or on a GPU whose current stream is being
/// captured.
void require_readable(Tensor const& tensor, char const* operation);

}  // namespace crossrank
