#pragma once
#include <crossrank/error.hpp>

/// The errors of a group that a peer has made unusable, and their hints.
namespace crossrank {

inline constexpr char const* lost_peer_hint = "restart the job; the output of the named ranks says why they ended";
inline constexpr char const* slow_peer_hint =
    "look at what the named ranks are doing, or raise the timeout if they need longer";
inline constexpr char const* mismatch_hint = "make every rank of the group call the same thing in the same order";

/// Returns whether the errors of a code name the ranks that have made a group unusable.
[[nodiscard]] constexpr bool is_peer_error(ErrorCode code) noexcept {
  return code == ErrorCode::peer_lost || code == ErrorCode::timeout || code == ErrorCode::mismatch;
}

/// Throws `info` with the hint that belongs to `code`, as `TimeoutError`, `MismatchError` or `BackendError`. Any other
/// code throws `PeerLostError`.
[[noreturn]] void throw_peer_error(ErrorCode code, ErrorInfo info);

}  // namespace crossrank
