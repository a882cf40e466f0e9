#pragma once
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <crossrank/checkpoint/memory_export.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"

namespace crossrank::test {

/// One tensor of a model and how the ranks of a job hold it.
struct ShardedWeight {
  Tensor whole{};
  checkpoint::TensorPlacement placement{};
};

using ShardedModel = std::map<std::string, ShardedWeight>;

/// Returns random bytes as a tensor.
[[nodiscard]] Tensor random_tensor(std::mt19937& random, Shape const& shape, Dtype dtype);

/// Returns the piece of the rank with number `place` in the mesh: an independent, slow implementation of DTensor's
/// rules. Partial values: the first rank has the tensor, the others have zeros.
[[nodiscard]] Tensor piece_of(Tensor const& whole, checkpoint::TensorPlacement const& placement, std::size_t place);

/// Returns the weights and placements of one rank. Meshes without ranks consist of all ranks.
struct RankPart {
  StateDict weights{};
  checkpoint::Placements placements{};
};
[[nodiscard]] RankPart part_of(ShardedModel const& model, int rank, int ranks);

/// Returns the model as `read_model` would.
[[nodiscard]] ModelBytes bytes_of(ShardedModel const& model);
/// Returns the dictionary as `read_model` would.
[[nodiscard]] ModelBytes bytes_of(StateDict const& weights);

/// Returns a model of tensors with random dtypes, shapes and placements on a mesh of `ranks` ranks.
[[nodiscard]] ShardedModel random_model(unsigned seed, int ranks);

}  // namespace crossrank::test
