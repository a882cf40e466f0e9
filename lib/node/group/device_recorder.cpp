#include "lib/node/group/device_recorder.hpp"

#include "lib/core/at_rank.hpp"
#include "lib/node/group/group.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

std::uint64_t recorded_now() noexcept { return static_cast<std::uint64_t>(platform::system().now().count()); }

}  // namespace

void DeviceFlightNote::advance(DeviceStage stage) const noexcept {
  if (!comm_ || !comm_->is_own_process()) return;
  advance_device_flight(comm_->device_flight(comm_->rank()), number_, stage, recorded_now());
}

DeviceRecorder::DeviceRecorder(std::shared_ptr<spi::NodeMemory> const& memory, std::span<int const> global_ranks)
    : global_ranks_(global_ranks.begin(), global_ranks.end()) {
  auto const group = group_of(memory);
  if (!group) return;
  comm_ = group->shared_comm();
  block_ = group->block();
}

DeviceFlightNote DeviceRecorder::note(DeviceFlightOperation operation) const noexcept {
  if (!comm_ || !comm_->is_own_process()) return {};
  operation.block = block_;
  operation.ranks = static_cast<int>(global_ranks_.size());
  if (operation.root && *operation.root >= 0 && *operation.root < std::ssize(global_ranks_))
    operation.root = at_rank(global_ranks_, *operation.root);
  return {comm_, write_device_flight(comm_->device_flight(comm_->rank()), operation, recorded_now())};
}

}  // namespace crossrank::node
