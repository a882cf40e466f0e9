#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Numbers of layers or experts that are missing, or too many.
struct NumberGap {
  std::string prefix{};  ///< what stands before the numbers: "model.layers."
  std::vector<std::int64_t> missing{};
  std::vector<std::int64_t> extra{};
  std::optional<std::int64_t> wanted{};  ///< how many there are by the config
  /// "model.layers.* lacks number 2, 3"
  [[nodiscard]] std::string text() const;
};

/// Gaps in the numbers that the names of a whole model have; without a config's word only those between two numbers.
[[nodiscard]] std::vector<NumberGap> find_gaps(std::span<std::string const> names, Json const& config);

/// Layers and experts that the names of a whole model skip, or that the config has and the names do not.
[[nodiscard]] std::vector<Defect> check_coverage(std::span<std::string const> names, Json const& config,
                                                 std::string const& where);

/// Tensors that one layer or expert lacks and two or more others have, which have all else that it has. The first of
/// them may be without: there are models whose first layer is made so.
[[nodiscard]] std::vector<Defect> check_siblings(std::span<std::string const> names);

/// Scales and zero points of one source whose shapes do not fit the weights that they belong to.
[[nodiscard]] std::vector<Defect> check_scales(ShardSource const& source, Json const& config, Json const& quantization);

}  // namespace crossrank::checkpoint
