#include "lib/core/peer_errors.hpp"

#include <utility>

namespace crossrank {

void throw_peer_error(ErrorCode code, ErrorInfo info) {
  switch (code) {
    case ErrorCode::timeout: info.hint = slow_peer_hint; throw TimeoutError(std::move(info));
    case ErrorCode::mismatch: info.hint = mismatch_hint; throw MismatchError(std::move(info));
    case ErrorCode::backend: throw BackendError(std::move(info));
    default: info.hint = lost_peer_hint; throw PeerLostError(std::move(info));
  }
}

}  // namespace crossrank
