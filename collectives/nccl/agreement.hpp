#pragma once
#include <memory>

#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/nccl/nccl_group.hpp"

namespace crossrank::nccl {

/// Decides with the other ranks of a group whether NCCL carries its collectives on device tensors, and makes the
/// communicator. Returns null, on all ranks, when it cannot: a rank has no NCCL or another version, two ranks have one
/// GPU, two ranks are threads of one process and NCCL is older than 2.23, a rank's `CROSSRANK_DEVICE` is "staged", or
/// NCCL refuses.
///
/// Collective over `transport`, which has no other collective under way; blocks. Costs four operations and a split on
/// the CPU and what NCCL needs. `UnavailableError` on all ranks in place of null when `CROSSRANK_DEVICE` of a rank is
/// "nccl". `UsageError` on all ranks when a graph is being captured from the `stream` of one.
[[nodiscard]] std::shared_ptr<NcclGroup> agree_on_communicator(spi::Transport& transport, Stream const& stream,
                                                               spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank::nccl
