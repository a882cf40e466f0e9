#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/checkpoint/placements.hpp>
#include <crossrank/state.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// What all ranks know of a tensor of one rank, except for its name. A model has few kinds, because its layers are
/// alike.
struct TensorKind {
  Dtype dtype = Dtype::u8;
  Shape shape{};                               ///< of the rank's own tensor
  TensorPlacement const* placement = nullptr;  ///< in `WeightNames::placements`, without `first_element`
  std::int64_t first_element = -1;             ///< as `TensorPlacement::first_element`; -1: not flattened
};

/// The tensors of a rank, in the order of its dictionary. Ranks of one sharded group usually have equal names and share
/// them, so that the memory for a description does not grow with the number of ranks.
struct WeightNames {
  std::vector<std::string> names{};
  std::vector<std::uint32_t> kinds{};  ///< of each tensor: number in `RankWeights::kinds`
  std::vector<TensorPlacement> placements{};
};

/// The tensors of one rank and its place.
struct RankWeights {
  ShardPlace place{};
  std::string host{};                          ///< equal for ranks that share memory
  std::vector<TensorKind> kinds{};             ///< of this rank's tensors
  std::shared_ptr<WeightNames const> names{};  ///< equal names are one object
};

/// The weights of all ranks.
struct DescribedWeights {
  int tp = 1;
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;
  std::vector<RankWeights> ranks{};
};

/// Tells all ranks which tensors each of them has. Collective; names that several ranks share are sent once.
///
/// Throws `UsageError` for an undefined tensor, one on a GPU whose current stream is being captured, a place outside
/// the grid and a placement of a tensor that no rank has, and `MismatchError` when ranks give different grids.
[[nodiscard]] DescribedWeights describe_weights(Collective const& world, StateDict const& weights,
                                                Placements const& placements, std::string const& operation);

/// Throws `UsageError` if the placements name a tensor that is not among `names`.
void require_tensors_of(Placements const& placements, std::vector<std::string> const& names,
                        std::string const& operation);

/// Throws `UsageError` unless `rank` is a place in a dimension of the grid that has `size` ranks. `whose` says which
/// placements give it.
void require_place(std::string const& operation, char const* whose, char const* name, int rank, int size);

/// Throws `UsageError` unless the groups of experts divide the tensor-parallel ranks.
void require_expert_groups(std::string const& operation, char const* whose, Placements const& placements);

}  // namespace crossrank::checkpoint
