#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <crossrank/collective/reduce_op.hpp>
#include <crossrank/tensor/shape.hpp>

/// Says how the ranks of a job hold the tensors of one model. Follows the placements of PyTorch's DTensor.
namespace crossrank::checkpoint {

/// Every rank along a dimension of the mesh holds the same values.
struct Replicate {
  /// Returns true.
  [[nodiscard]] bool operator==(Replicate const&) const noexcept = default;
};

/// The ranks along a dimension of the mesh hold consecutive pieces of a dimension of the tensor.
///
/// Follows the chunk rule of PyTorch: each rank holds ceil(length / ranks) entries, the last rank with entries holds
/// the rest, and the ranks after it hold none.
struct Shard {
  std::int64_t dim = 0;  ///< negative numbers count from the last dimension
  /// Returns whether both name the same dimension.
  [[nodiscard]] bool operator==(Shard const&) const noexcept = default;
};

/// The tensor is split into `split_factor` parts, and each part is sharded like `Shard`. A rank holds its pieces of all
/// parts.
///
/// FSDP2 uses this placement if a later dimension of the mesh shards the same dimension of the tensor. If the ranks
/// along the next such dimensions are `split_factor`, these dimensions split the tensor into the parts, and a rank
/// holds a piece of its own part; lengths may then be uneven, as in PyTorch. PyTorch calls it `_StridedShard`.
struct StridedShard {
  std::int64_t dim = 0;           ///< negative numbers count from the last dimension
  std::int64_t split_factor = 1;  ///< number of parts
  /// Returns whether both have the same members.
  [[nodiscard]] bool operator==(StridedShard const&) const noexcept = default;
};

/// The values of the tensor are the combination of the values of the ranks along a dimension of the mesh.
struct Partial {
  ReduceOp op = ReduceOp::sum;  ///< combines in the order of the mesh, as `Collective::all_reduce` does
  /// Returns whether both have the same operation.
  [[nodiscard]] bool operator==(Partial const&) const noexcept = default;
};

/// How the ranks along one dimension of a mesh hold a tensor.
using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;

/// Ranks as a grid, as in PyTorch's DeviceMesh.
struct DeviceMesh {
  std::vector<std::int64_t> shape{};  ///< lengths of the dimensions; empty: one dimension of all `ranks`
  std::vector<int> ranks{};  ///< ranks of the group, the last dimension varies fastest; empty: see `Placements`
  /// Returns whether both have the same shape and ranks.
  [[nodiscard]] bool operator==(DeviceMesh const&) const = default;
};

/// How the ranks of a mesh hold one tensor.
struct TensorPlacement {
  std::vector<Placement> placements{};  ///< one for each dimension of the mesh; empty: all of its ranks hold all values
  DeviceMesh mesh{};                    ///< the ranks that hold the tensor

  /// Shape of the tensor of the whole mesh. Empty: taken from the shapes of the ranks' tensors.
  ///
  /// A rank's tensor may then have additional entries at the end of a sharded dimension, up to the length of a full
  /// chunk. They are padding and are ignored.
  std::optional<Shape> shape{};

  /// If set, this rank's tensor holds consecutive elements of the flattened tensor, and this is the number of the first
  /// one. `placements` and `shape` then describe only the whole tensor: `placements` is empty, and `shape` is given.
  /// Elements past the end of the tensor are padding.
  std::optional<std::int64_t> first_element{};

  /// Returns whether both describe the same placement.
  [[nodiscard]] bool operator==(TensorPlacement const&) const = default;
};

/// How the ranks of a job hold a model. Each rank passes its own.
///
/// Ranks with the same `tp_rank`, `pp_rank` and `ep_rank` form a *cell*. The cells hold the shards of tensor, pipeline
/// and expert parallelism. Rules merge them like shards in files. Inside a cell, each tensor is spread over the ranks
/// as its placement says. A tensor without a placement is `otherwise`; by default all ranks of the cell hold the same
/// values. A mesh without ranks consists of all ranks of the cell that have tensors, in their order. If a rank has
/// none, a tensor with `Shard` needs `shape`, and one with `Partial` needs a mesh, because they may lack a piece
/// otherwise.
///
/// Examples:
/// - data parallel: `{}`
/// - tensor parallel with 8 ranks: `{.tp_rank = rank % 8, .tp = 8}`
/// - FSDP: `{.otherwise = {.placements = {Shard{0}}}}`
/// - HSDP with two replicas: `{.otherwise = {.placements = {Replicate{}, Shard{0}}, .mesh = {.shape = {2, n / 2}}}}`
struct Placements {
  int tp_rank = 0;              ///< tensor-parallel rank of this rank
  int tp = 1;                   ///< tensor-parallel size
  int pp_rank = 0;              ///< pipeline stage of this rank
  int pp = 1;                   ///< number of pipeline stages
  int ep_rank = 0;              ///< expert-parallel rank of this rank
  int ep = 1;                   ///< expert-parallel size
  int moe_ep = 1;               ///< groups of experts among the tensor-parallel ranks, as `PlanOptions::moe_ep`
  TensorPlacement otherwise{};  ///< placement of all other tensors
  std::map<std::string, TensorPlacement, std::less<>> tensors{};  ///< placements by the name of a tensor of any rank
};

}  // namespace crossrank::checkpoint
