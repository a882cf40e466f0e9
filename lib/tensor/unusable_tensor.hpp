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

}  // namespace crossrank
