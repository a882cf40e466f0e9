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

/// Numbers of layers or experts that are missing or surplus.
struct NumberGap {
  std::string prefix{};                 ///< text before the number: "model.layers."
  std::vector<std::int64_t> missing{};  ///< the first few of them
  std::int64_t missing_count = 0;       ///< all of them
  std::vector<std::int64_t> extra{};
  std::optional<std::int64_t> wanted{};  ///< number of layers or experts in the config
  /// Returns a sentence: "model.layers.* lacks number 2, 3".
  [[nodiscard]] std::string text() const;
};

/// Finds gaps in the numbers of layers and experts of a whole model. If the config gives no count, only gaps between
/// two numbers are found.
[[nodiscard]] std::vector<NumberGap> find_gaps(std::span<std::string const> names, Json const& config);

/// Reports the gaps of `find_gaps` as defects of `where`.
[[nodiscard]] std::vector<Defect> check_coverage(std::span<std::string const> names, Json const& config,
                                                 std::string const& where);

/// Finds tensors that one layer or expert lacks and two or more siblings have, if those siblings also have all of its
/// other tensors. Does not look at the first layer, which differs in some models.
[[nodiscard]] std::vector<Defect> check_siblings(std::span<std::string const> names);

/// Finds scales and zero points of one source whose shapes do not fit their weights.
[[nodiscard]] std::vector<Defect> check_scales(ShardSource const& source, Json const& config, Json const& quantization);

}  // namespace crossrank::checkpoint
