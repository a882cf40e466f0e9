#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/memory/exchange/received_bytes.hpp"
#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The result of an export as a source for the threads that write it. Each unit is read once; a read waits for the
/// unit's bytes and frees them afterwards.
class ExportedSource final : public ShardSource {
 public:
  /// `merged` reads from the cells.
  explicit ExportedSource(std::shared_ptr<ShardSource const> merged) : merged_(std::move(merged)) {}

  /// Begins to read units, those of this rank's work.
  void start(std::vector<WorkUnit> const& units, std::shared_ptr<ReceivedBytes> received);
  [[nodiscard]] std::string const& name() const noexcept override { return merged_->name(); }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return merged_->tensors(); }
  [[nodiscard]] Json const& attributes() const noexcept override { return merged_->attributes(); }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return merged_->bytes_on_disk(); }
  [[nodiscard]] bool is_in_memory() const noexcept override { return true; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<ShardSource const> merged_;
  std::shared_ptr<ReceivedBytes> received_{};
  /// The number of a unit.
  struct Numbered {
    std::uint32_t tensor = 0;
    std::uint32_t number = 0;
    std::uint64_t offset = 0;
  };
  std::vector<Numbered> numbers_{};  ///< sorted by tensor and offset
};

}  // namespace crossrank::checkpoint
