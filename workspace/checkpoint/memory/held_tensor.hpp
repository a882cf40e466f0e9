#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint/placements.hpp>

#include "lib/codec/io/chunk_coverage.hpp"
#include "workspace/checkpoint/memory/described_weights.hpp"
#include "workspace/checkpoint/memory/index_ranges.hpp"
#include "workspace/checkpoint/source/box_runs.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// One copy of a box: the rank that holds it, or the ranks whose values make it up.
using HeldCopy = std::vector<int>;

/// A box of a tensor and the ranks that hold it. All lengths count units of whole bytes, see `HeldTensor`.
struct HeldBox {
  codec::ChunkBox box{};
  std::vector<std::int64_t> begin{};    ///< place of the box in the ranks' own tensors
  std::vector<std::int64_t> lengths{};  ///< shape of the ranks' own tensors
  std::vector<HeldCopy> copies{};       ///< replicas, in the order of the mesh

  [[nodiscard]] StoredBox stored() const noexcept { return {.box = &box, .lengths = lengths, .begin = begin}; }
};

/// A tensor of a cell as the ranks of the cell hold it. The boxes cover it exactly once. Tensors that are held in the
/// same way share one.
///
/// A unit is one element, or the smallest group of elements that fills whole bytes. Lengths of the last dimension count
/// units.
struct HeldTensor {
  std::size_t unit = 1;                 ///< bytes of a unit
  std::vector<std::int64_t> lengths{};  ///< shape in units; one dimension if the ranks hold it flattened
  std::vector<HeldBox> boxes{};
  std::optional<ReduceOp> combine{};  ///< how the ranks of a copy combine, if a copy has several

  /// Calls `visit(in, at, count)` for each contiguous run of units of a box inside units `[first, last)`: its place in
  /// the holders' own tensors, its place in the whole tensor and its length, in order.
  template <class Visitor>
  void for_each_run(HeldBox const& box, std::int64_t first, std::int64_t last, Visitor const& visit) const {
    codec::for_each_box(lengths, first, last, [&](codec::Box const& range) {
      BoxRuns common(lengths, range, box.stored());
      if (common.any()) common.for_each_run(visit);
    });
  }
};

/// The tensor of one rank that takes part in a tensor of a cell.
struct Member {
  int rank = 0;
  TensorKind const* described = nullptr;
};

/// A tensor of a cell: its description and its boxes.
struct DescribedHeldTensor {
  SourceTensor tensor{};
  HeldTensor held{};
};

/// The ranks of a cell, in order.
struct CellRanks {
  std::vector<int> holding{};  ///< ranks with tensors; a mesh without ranks consists of these
  std::vector<int> idle{};     ///< ranks without any tensor
};

/// Finds out how the ranks of a cell hold one tensor. `members` are the ranks that have the tensor, in order.
///
/// Throws `FormatError` when the ranks shard the tensor differently, when one lacks it, when the placements do not
/// cover it exactly once, or when nothing tells whether an idle rank should hold a piece, and `UsageError` for a mesh
/// that does not fit.
[[nodiscard]] DescribedHeldTensor hold_tensor(std::string const& name, std::span<Member const> members,
                                              CellRanks const& cell, std::string const& operation);

/// Returns the entries of each dimension of a tensor of `shape` that the rank at `place` of the mesh holds.
[[nodiscard]] std::vector<IndexRanges> held_entries(Shape const& shape, std::span<Placement const> placements,
                                                    std::span<MeshPlace const> place);

}  // namespace crossrank::checkpoint
