#pragma once
#include <crossrank/spi/device_transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/nccl/communicator.hpp"

namespace crossrank::nccl {

/// Returns whether NCCL can run a call: no reduction whose dtype or op NCCL lacks. All ranks that make the same call
/// get the same answer.
[[nodiscard]] bool can_run(spi::DeviceCollective const& call) noexcept;

/// Returns whether the call is a min or max of a floating dtype. NCCL may lose a NaN in it: it keeps the other value.
[[nodiscard]] bool may_lose_nan(spi::DeviceCollective const& call) noexcept;

/// Enqueues a call on device tensors. The calls of NCCL are one kernel or one group. Does not wait for the device.
/// `poll_hook` may throw, to end the wait for NCCL.
void enqueue_call(Communicator& communicator, spi::DeviceCollective const& call, Stream const& stream,
                  spi::DevicePollHook const& poll_hook);

}  // namespace crossrank::nccl
