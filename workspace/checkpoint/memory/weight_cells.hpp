#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/state.hpp>

#include "workspace/checkpoint/memory/described_weights.hpp"
#include "workspace/checkpoint/memory/held_tensor.hpp"
#include "workspace/checkpoint/memory/exchange/received_bytes.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/weight_reader.hpp"

namespace crossrank::checkpoint {

/// Thrown by a read of bytes that no rank has sent yet, while rules are chosen. All ranks then exchange these values
/// and choose again.
struct NeedsValues {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;  ///< of the bytes that were asked for
  std::uint64_t bytes = 0;
};

/// The tensors of a cell in their order.
struct CellTensors {
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  std::shared_ptr<std::vector<SourceTensor> const> described{};  ///< tensor-parallel ranks usually share them
  std::vector<std::shared_ptr<HeldTensor const>> held{};         ///< which ranks hold each tensor
  std::vector<std::uint32_t> own{};                              ///< numbers of this rank's pieces in its dictionary
};

/// The tensors of a cell as a source. A read returns bytes that this rank has received.
class CellSource final : public ShardSource {
 public:
  CellSource(std::string name, std::uint32_t number, CellTensors tensors);

  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return *tensors_.described; }
  [[nodiscard]] Json const& attributes() const noexcept override { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return bytes_; }

  [[nodiscard]] bool is_in_memory() const noexcept override { return true; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] HeldTensor const& held(std::size_t tensor) const { return *tensors_.held[tensor]; }
  /// Returns the number of this rank's piece of a tensor in `WeightCells::own`. Only valid if this rank holds one.
  [[nodiscard]] std::uint32_t own(std::size_t tensor) const { return tensors_.own[tensor]; }
  /// Takes the bytes from `received` from now on. Without it, only tensors with known values can be read.
  void read_from(std::shared_ptr<ReceivedBytes const> received) { received_ = std::move(received); }
  /// Gives bytes of a tensor from `offset` on.
  void set_value(std::size_t tensor, std::uint64_t offset, std::vector<std::byte> bytes);

 private:
  [[nodiscard]] bool copy_value(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const;

  std::string name_;
  Json attributes_ = Json::object();
  std::uint64_t bytes_ = 0;  ///< of all tensors
  std::uint32_t number_;
  CellTensors tensors_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<std::byte>> values_{};  ///< by tensor and offset
  std::shared_ptr<ReceivedBytes const> received_{};
};

/// The weights of all ranks as shards of one model.
struct WeightCells {
  std::vector<std::shared_ptr<CellSource>> cells{};
  std::vector<std::string> hosts{};           ///< of each rank
  std::shared_ptr<WeightReader const> own{};  ///< the tensors of this rank
  ShardSet set{};                             ///< its sources are the cells
  int rank = 0;
};

/// Arranges the weights of all ranks in cells. Local. Keeps the tensors of `weights` alive. Errors as for
/// `hold_tensor` and `WeightReader`, and `FormatError` for a cell without tensors.
[[nodiscard]] WeightCells make_cells(DescribedWeights const& described, StateDict const& weights, int rank,
                                     std::string const& operation);

/// Passes the bytes that this rank holds of units `[first, last)` of a box to `take`, in order. `tensor` is the number
/// of its piece. Errors as for `WeightReader::read_in_pieces`.
void read_own_units(WeightCells const& cells, std::uint32_t tensor, HeldTensor const& held, HeldBox const& box,
                    std::int64_t first, std::int64_t last, TakePiece const& take);

}  // namespace crossrank::checkpoint
