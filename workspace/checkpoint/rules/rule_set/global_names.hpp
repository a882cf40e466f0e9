#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Translates names of pipeline stages and expert-parallel ranks, whose numbers may start at 0 on each, to names of the
/// whole model.
class GlobalNames {
 public:
  GlobalNames() = default;
  /// Reads from the names of all sources which numbers start at 0. `FormatError` when the numbers of stages or expert
  /// ranks overlap in part, or when there are more than in the config.
  GlobalNames(ShardSet const& set, ModelSizes const& sizes);

  /// Returns the name in the whole model of the tensor called `name` at `place`.
  [[nodiscard]] std::string global_name(std::string_view name, ShardPlace place) const;

 private:
  /// Text before the number, pipeline stage, expert rank or group of experts.
  using Key = std::tuple<std::string, int, int>;
  void number_layers(ShardSet const& set, ModelSizes const& sizes);
  void number_experts(ShardSet const& set, ModelSizes const& sizes);

  [[nodiscard]] int member(ShardPlace const& place) const noexcept { return place.ep * groups_ + place.moe; }

  int groups_ = 1;  ///< groups of experts in each expert rank
  std::map<Key, std::int64_t> layer_offsets_{};
  std::map<Key, std::int64_t> expert_offsets_{};
};

}  // namespace crossrank::checkpoint
