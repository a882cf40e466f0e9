#pragma once
#include "collectives/message/message_transport.hpp"

namespace crossrank::composite {

/// Shows this rank as waiting to the ranks of other nodes that wait for it, while it waits for something other than
/// `across`.
class WaitingOutsideScope {
 public:
  /// `across` is null where this rank marks itself.
  explicit WaitingOutsideScope(spi::Transport* across) noexcept
      : across_(dynamic_cast<message::MessageTransport*>(across)) {
    if (across_ != nullptr) across_->enter_wait(1);
  }
  ~WaitingOutsideScope() {
    if (across_ != nullptr) across_->enter_wait(-1);
  }
  WaitingOutsideScope(WaitingOutsideScope const&) = delete;
  WaitingOutsideScope& operator=(WaitingOutsideScope const&) = delete;

 private:
  message::MessageTransport* across_;
};

}  // namespace crossrank::composite
