#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "workspace/checkpoint/memory/weight_cells.hpp"

namespace crossrank::checkpoint {

/// Consecutive bytes of a tensor of a cell.
struct CellRange {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A unit of a rank's work: consecutive bytes of one tensor of its result.
struct WorkUnit {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Returns the bytes of the cells that a unit needs, without overlaps.
using InputsOf = std::function<std::vector<CellRange>(int rank, WorkUnit const& unit)>;

/// A part of a box that goes to one rank. All ranks that hold the copy send it in the same round.
struct TransferItem {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
  HeldTensor const* held = nullptr;
  HeldBox const* box = nullptr;
  HeldCopy const* copy = nullptr;
  std::int64_t first = 0;  ///< units of the tensor: only those in the box are sent
  std::int64_t last = 0;
  std::uint64_t bytes = 0;  ///< that each rank of the copy sends
  std::size_t unit = 0;     ///< number of the unit in the receiver's work
  std::size_t block = 0;    ///< number of the block in the unit
};

/// A block that a unit consists of.
struct PlannedBlock {
  std::uint32_t cell = 0;
  std::uint32_t tensor = 0;
  std::int64_t first = 0;  ///< units of the tensor
  std::int64_t last = 0;
  /// Where the bytes come from.
  enum class From : std::uint8_t {
    own,    ///< one run of a tensor of the receiver: not copied
    item,   ///< one item of one rank: the received bytes are the block
    items,  ///< several items, which are put together
  } from = From::item;
  std::int64_t own_at = 0;  ///< own: first unit in the receiver's own tensor
};

/// A unit with its blocks.
struct PlannedUnit {
  std::size_t unit = 0;
  std::vector<PlannedBlock> blocks{};
  std::size_t items = 0;  ///< number of items in all rounds
};

/// What one rank sends and receives in a round.
struct TransferRound {
  struct Sent {
    int to = 0;
    TransferItem item{};
  };
  std::vector<Sent> sent{};                   ///< by receiver, in the order in which the receiver expects the items
  std::vector<std::int64_t> send_bytes{};     ///< to each rank
  std::vector<TransferItem> received{};       ///< items for this rank
  std::vector<std::int64_t> receive_bytes{};  ///< from each rank
  bool transfers = false;                     ///< whether any rank sends anything
  std::vector<PlannedUnit> opened{};          ///< units of this rank whose first items come in this round
};

/// Says which bytes go from which rank to which in each round. All ranks compute the same schedule, so no rank has to
/// ask for bytes.
///
/// In a round, a rank sends and receives at most `round_bytes` bytes. Units of a rank are completed in their order.
/// A unit that needs no items counts as one.
class TransferSchedule {
 public:
  /// Limit of the bytes that a rank sends in a round, and of those that it receives.
  static constexpr std::uint64_t round_bytes = std::uint64_t{24} << 20;
  /// Limit of the items of all ranks in a round. A round of small tensors would need more memory for their
  /// descriptions than for their bytes.
  static constexpr std::size_t round_items = 8192;
  /// Limit of the bytes of an item.
  static constexpr std::uint64_t item_bytes = std::uint64_t{8} << 20;

  /// `units[r]` is the work of rank r. `cells` must outlive the schedule.
  TransferSchedule(WeightCells const& cells, std::vector<std::vector<WorkUnit>> units, InputsOf inputs_of);

  /// Returns whether all bytes are in rounds that `next` has returned.
  [[nodiscard]] bool over() const noexcept { return units_left_ == 0; }
  /// Returns the next round.
  [[nodiscard]] TransferRound next();

 private:
  /// The work of one rank that is not in a round yet.
  struct Cursor {
    std::size_t next_unit = 0;
    std::optional<PlannedUnit> unit{};
    std::vector<TransferItem> items{};  ///< of the unit
    std::size_t next_item = 0;
    bool opened = false;
  };
  struct Budget {
    std::vector<std::uint64_t> sent;
    std::vector<std::uint64_t> received;
    std::vector<std::size_t> items;  ///< that each rank may still begin
  };

  void open_unit(int rank, Cursor& cursor);
  void plan_range(int rank, CellRange const& range, Cursor& cursor) const;
  void plan_items(int rank, PlannedBlock const& block, HeldTensor const& held, Cursor& cursor) const;
  [[nodiscard]] HeldCopy const& copy_for(int rank, HeldBox const& box, std::size_t salt) const;
  [[nodiscard]] bool fits(int rank, TransferItem const& item, Budget const& budget) const;
  void take(int rank, TransferItem const& item, Budget& budget, TransferRound& round) const;
  void fill(int rank, Budget& budget, TransferRound& round);

  WeightCells const& cells_;
  std::vector<std::vector<WorkUnit>> units_;
  InputsOf inputs_of_;
  std::vector<Cursor> cursors_;
  std::size_t units_left_ = 0;
  std::size_t rounds_ = 0;
};

}  // namespace crossrank::checkpoint
