#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/state.hpp>

#include "workspace/checkpoint/memory/described_weights.hpp"
#include "workspace/checkpoint/memory/held_tensor.hpp"
#include "workspace/checkpoint/memory/received_bytes.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Thrown by a read of bytes that no rank has sent yet, while rules are chosen. All ranks then exchange these values
/// and choose again.
struct NeedsValues {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
};

/// The tensors of a cell as a source. A read returns bytes that this rank has received.
class CellSource final : public DescribedSource {
 public:
  CellSource(std::string name, std::uint32_t number, std::vector<DescribedHeldTensor> tensors);

  [[nodiscard]] bool is_in_memory() const noexcept override { return true; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] HeldTensor const& held(std::size_t tensor) const { return held_[tensor]; }
  /// Takes the bytes from `received` from now on. Without it, only tensors with known values can be read.
  void read_from(std::shared_ptr<ReceivedBytes const> received) { received_ = std::move(received); }
  /// Gives all bytes of a tensor.
  void set_value(std::size_t tensor, std::vector<std::byte> bytes);

 private:
  std::uint32_t number_;
  std::vector<HeldTensor> held_{};
  std::map<std::size_t, std::vector<std::byte>> values_{};
  std::shared_ptr<ReceivedBytes const> received_{};
};

/// The weights of all ranks as shards of one model.
struct WeightCells {
  std::vector<std::shared_ptr<CellSource>> cells{};
  std::vector<std::string> hosts{};  ///< of each rank
  std::vector<Tensor> own{};         ///< tensors of this rank, by number
  ShardSet set{};                    ///< its sources are the cells
  int rank = 0;
};

/// Arranges the weights of all ranks in cells. Local. Errors as for `hold_tensor`, and `FormatError` for a cell without
/// tensors.
[[nodiscard]] WeightCells make_cells(DescribedWeights const& described, StateDict const& weights, int rank,
                                     std::string const& operation);

/// Exchanges the values of a tensor and of all tensors whose names end in the same way, such as ".g_idx". Collective.
/// Throws `UsageError` if they have more than 64 MiB.
void exchange_values(Collective const& world, WeightCells& cells, NeedsValues needed, std::string const& operation);

/// Returns the result of `choose`, which chooses rules. All ranks choose the same ones, because they see the same
/// descriptions and the same values. If rules depend on values, the ranks exchange these and choose again. Collective.
template <class Choose>
auto with_values(Collective const& world, WeightCells& cells, std::string const& operation, Choose const& choose) {
  for (;;) {
    std::optional<NeedsValues> needed;
    decltype(choose()) chosen;
    agree(world, operation, [&] {
      try {
        chosen = choose();
      } catch (NeedsValues const& values) {
        needed = values;
      }
    });
    if (!needed) return chosen;
    exchange_values(world, cells, *needed, operation);
  }
}

/// Returns the memory of units `[first, last)` of a tensor of this rank.
[[nodiscard]] std::span<std::byte const> own_units(WeightCells const& cells, std::uint32_t tensor, std::size_t unit,
                                                   std::int64_t first, std::int64_t last);

}  // namespace crossrank::checkpoint
