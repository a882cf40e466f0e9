#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/placements.hpp>
#include <crossrank/state.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// One tensor of a rank, as all ranks know it.
struct DescribedTensor {
  std::string const* name = nullptr;  ///< in `RankWeights::names`
  Dtype dtype = Dtype::u8;
  Shape shape{};                               ///< of the rank's own tensor
  TensorPlacement const* placement = nullptr;  ///< in `RankWeights::placements`, without `first_element`
  std::int64_t first_element = -1;             ///< as `TensorPlacement::first_element`; -1: not flattened
};

/// Names and placements of tensors. Ranks of one sharded group usually have equal ones and share them.
struct WeightNames {
  std::vector<std::string> names{};
  std::vector<TensorPlacement> placements{};
};

/// The tensors of one rank and its place.
struct RankWeights {
  ShardPlace place{};
  std::string host{};                          ///< equal for ranks that share memory
  std::vector<DescribedTensor> tensors{};      ///< in the order of the rank's dictionary
  std::shared_ptr<WeightNames const> names{};  ///< owns what the tensors point to
};

/// The weights of all ranks.
struct DescribedWeights {
  int tp = 1;
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;
  std::vector<RankWeights> ranks{};
};

/// Tells all ranks which tensors each of them has. Collective; names and placements that several ranks share are sent
/// once.
///
/// Throws `UsageError` for an undefined tensor, a tensor that is not on the CPU and a place outside the grid, and
/// `MismatchError` when ranks give different grids.
[[nodiscard]] DescribedWeights describe_weights(Collective const& world, StateDict const& weights,
                                                Placements const& placements, std::string const& operation);

}  // namespace crossrank::checkpoint
