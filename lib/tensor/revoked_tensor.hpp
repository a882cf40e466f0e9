#pragma once
#include <string>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// Throws the error of the use of a tensor whose memory was revoked: `PeerLostError` when its owner has gone, else
/// `UsageError`.
[[noreturn]] void throw_revoked(Tensor const& tensor, char const* operation, std::string why);

}  // namespace crossrank
