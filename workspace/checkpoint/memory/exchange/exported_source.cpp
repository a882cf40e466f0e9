#include "workspace/checkpoint/memory/exchange/exported_source.hpp"

#include <algorithm>
#include <tuple>

#include <crossrank/error.hpp>

#include "lib/platform/crash_point.hpp"

namespace crossrank::checkpoint {

void ExportedSource::start(std::vector<WorkUnit> const& units, std::shared_ptr<ReceivedBytes> received) {
  received_ = std::move(received);
  numbers_.reserve(units.size());
  for (auto const& unit : units)
    numbers_.push_back({unit.tensor, static_cast<std::uint32_t>(numbers_.size()), unit.offset});
  std::sort(numbers_.begin(), numbers_.end(),
            [](auto const& a, auto const& b) { return std::tie(a.tensor, a.offset) < std::tie(b.tensor, b.offset); });
}

void ExportedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const found =
      std::lower_bound(numbers_.begin(), numbers_.end(), std::pair(tensor, offset),
                       [](Numbered const& a, auto const& b) { return std::pair(std::size_t{a.tensor}, a.offset) < b; });
  if (found == numbers_.end() || found->tensor != tensor || found->offset != offset) {
    throw UsageError({.operation = "consolidate",
                      .message = "a read is outside this rank's work",
                      .got = std::to_string(out.size()) + " from " + std::to_string(offset),
                      .resource = tensors()[tensor].name,
                      .hint = "this is a defect of crossrank, please report it"});
  }
  std::size_t const unit = found->number;
  received_->wait_for(unit);
  merged_->read(tensor, offset, out);
  received_->give_back(unit);
  CROSSRANK_CRASH_POINT("export.unit.read");
}

}  // namespace crossrank::checkpoint
