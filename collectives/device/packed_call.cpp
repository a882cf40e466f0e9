#include "collectives/device/packed_call.hpp"

#include <utility>

namespace crossrank::device {

PackedCall::PackedCall(algorithms::Call const& call, Begin const& begin) : unpack_(call.unpack) {
  if (call.pack) call.pack();
  auto on_buffer = call;
  on_buffer.pack = nullptr;
  on_buffer.unpack = nullptr;
  inner_ = begin(on_buffer);
}

algorithms::Call PackedCall::on_host(std::chrono::milliseconds timeout) { return inner_->on_host(timeout); }

void PackedCall::finish() {
  inner_->finish();
  if (unpack_) {
    StreamGuard const guard(stream());
    unpack_();
  }
  ended_ = stream().record();
}

}  // namespace crossrank::device
