#include "workspace/checkpoint/memory/exported_source.hpp"

#include "lib/platform/crash_point.hpp"

namespace crossrank::checkpoint {

ExportedSource::ExportedSource(std::shared_ptr<ShardSource const> merged)
    : DescribedSource(merged->name()), merged_(std::move(merged)) {
  tensors_.assign(merged_->tensors().begin(), merged_->tensors().end());
}

void ExportedSource::start(std::vector<WorkUnit> const& units, std::shared_ptr<ReceivedBytes> received) {
  received_ = std::move(received);
  for (std::size_t i = 0; i < units.size(); ++i) numbers_.emplace(std::pair(units[i].tensor, units[i].offset), i);
}

void ExportedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const unit = numbers_.at({tensor, offset});
  received_->wait_for(unit);
  merged_->read(tensor, offset, out);
  received_->give_back(unit);
  CROSSRANK_CRASH_POINT("export.unit.read");
}

}  // namespace crossrank::checkpoint
