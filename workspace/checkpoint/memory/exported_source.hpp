#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "workspace/checkpoint/memory/received_bytes.hpp"
#include "workspace/checkpoint/memory/transfer_schedule.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The result of an export as a source for the threads that write it. Each unit is read once; a read waits for the
/// unit's bytes and frees them afterwards.
class ExportedSource final : public DescribedSource {
 public:
  /// `merged` reads from the cells.
  explicit ExportedSource(std::shared_ptr<ShardSource const> merged);

  /// Begins to read units, those of this rank's work.
  void start(std::vector<WorkUnit> const& units, std::shared_ptr<ReceivedBytes> received);
  [[nodiscard]] bool is_in_memory() const noexcept override { return true; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<ShardSource const> merged_;
  std::shared_ptr<ReceivedBytes> received_{};
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> numbers_{};  ///< of the units, by tensor and offset
};

}  // namespace crossrank::checkpoint
