#pragma once
#include <memory>

#include <crossrank/collective/check_level.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/device_transport/watched_transport.hpp"

namespace crossrank::device {

/// Decides with the other ranks of a group which device transport carries its collectives on device tensors, and makes
/// it. Returns null, on all ranks, when there is none: a rank has none, or the ranks have different ones, or a rank's
/// `CROSSRANK_DEVICE` is "staged", or the transport objects to the ranks or cannot be made.
///
/// Collective over `transport`, which has no other collective under way; blocks. Costs four operations and a split on
/// the CPU and what the device transport needs. `UnavailableError` on all ranks in place of null when
/// `CROSSRANK_DEVICE` of a rank names a device transport. `UsageError` on all ranks when a graph is being captured from
/// the `stream` of one.
[[nodiscard]] std::shared_ptr<WatchedTransport> agree_on_transport(spi::Transport& transport, Stream const& stream,
                                                                   CheckLevel check,
                                                                   spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank::device
