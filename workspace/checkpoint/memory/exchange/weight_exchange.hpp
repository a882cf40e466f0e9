#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "workspace/checkpoint/memory/exchange/export_buffers.hpp"
#include "workspace/checkpoint/memory/exchange/received_bytes.hpp"
#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Sends the bytes of a schedule and receives those of this rank. Each round is one exchange between all ranks.
class WeightExchange final : public PoolExchange {
 public:
  /// `cells` must outlive the exchange.
  WeightExchange(WeightCells const& cells, std::vector<std::vector<WorkUnit>> units, InputsOf inputs_of);

  /// Returns the bytes that have arrived, by units of this rank.
  [[nodiscard]] std::shared_ptr<ReceivedBytes> const& received() const noexcept { return received_; }

  [[nodiscard]] bool over() const noexcept override { return schedule_.over() && !round_; }
  [[nodiscard]] bool prepare_round(std::chrono::milliseconds limit) override;
  void exchange_round(Collective const& world) override;
  void finish_round() override;
  void stop() noexcept override { received_->stop(); }

 private:
  /// A unit whose items have not all arrived.
  struct OpenUnit {
    PlannedUnit plan{};
    std::vector<std::shared_ptr<std::byte>> memory{};  ///< of the blocks that are put together
    std::vector<Block> blocks{};                       ///< one for each planned block
    std::size_t items_left = 0;
  };

  void pack();
  void open_units();
  [[nodiscard]] std::size_t block_size(PlannedBlock const& block) const;
  void unpack();
  void put(TransferItem const& item, std::vector<std::byte const*> const& parts);
  /// Returns the number of this rank's piece of a tensor of a cell.
  [[nodiscard]] std::uint32_t own_tensor(std::uint32_t cell, std::uint32_t tensor) const;
  /// Gives a block the memory of this rank's tensor, or has it copied from a GPU when a worker needs it.
  void use_own_memory(Block& made, PlannedBlock const& block, std::size_t unit) const;
  /// Copies what this rank holds of an item. Returns the end of the copy.
  std::byte* copy_own_part(TransferItem const& item, std::byte* to) const;
  void finish_units();

  WeightCells const& cells_;
  TransferSchedule schedule_;
  std::shared_ptr<ReceivedBytes> received_ = std::make_shared<ReceivedBytes>();
  std::shared_ptr<ExportBuffers> receiving_;
  std::shared_ptr<ExportBuffers> sending_;
  std::optional<TransferRound> round_{};
  ExportBuffers::Memory in_{};   ///< packed bytes of the round
  ExportBuffers::Memory out_{};  ///< received bytes of the round
  bool packed_ = false;
  std::map<std::size_t, OpenUnit> open_{};
  std::size_t open_block_bytes_ = 0;  ///< bytes of the blocks of open units
};

}  // namespace crossrank::checkpoint
