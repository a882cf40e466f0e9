#pragma once
#include "collectives/message/message_transport.hpp"

namespace crossrank::composite {

/// Marks this rank as waiting while it waits outside `across`, for the ranks of other nodes that wait for this one.
class WaitingMark {
 public:
  /// `across` is null where this rank marks itself.
  explicit WaitingMark(spi::Transport* across) noexcept : across_(dynamic_cast<message::MessageTransport*>(across)) {
    if (across_ != nullptr) across_->enter_wait(1);
  }
  ~WaitingMark() {
    if (across_ != nullptr) across_->enter_wait(-1);
  }
  WaitingMark(WaitingMark const&) = delete;
  WaitingMark& operator=(WaitingMark const&) = delete;

 private:
  message::MessageTransport* across_;
};

}  // namespace crossrank::composite
