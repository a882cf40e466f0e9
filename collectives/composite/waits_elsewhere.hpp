#pragma once
#include "collectives/message/message_transport.hpp"

namespace crossrank::composite {

/// Marks this rank as waiting while it waits outside `across`, for the ranks of other nodes that wait for this one.
class WaitsElsewhere {
 public:
  /// `across` is null where this rank marks itself.
  explicit WaitsElsewhere(spi::Transport* across) noexcept : across_(dynamic_cast<message::MessageTransport*>(across)) {
    if (across_ != nullptr) across_->enter_wait(1);
  }
  ~WaitsElsewhere() {
    if (across_ != nullptr) across_->enter_wait(-1);
  }
  WaitsElsewhere(WaitsElsewhere const&) = delete;
  WaitsElsewhere& operator=(WaitsElsewhere const&) = delete;

 private:
  message::MessageTransport* across_;
};

}  // namespace crossrank::composite
