#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Names of the whole model for names of pipeline stages and expert-parallel ranks, which may count from 0 in each.
class GlobalNames {
 public:
  GlobalNames() = default;
  /// Sees from the names of all sources who counts from 0. `FormatError` when the numbers of stages or expert ranks
  /// neither follow each other nor all start at 0, or when there are more than the config says.
  GlobalNames(ShardSet const& set, ModelSizes const& sizes);

  /// The name in the whole model of what is called `name` at `place`.
  [[nodiscard]] std::string global_name(std::string_view name, ShardPlace place) const;

 private:
  /// What stands before the number, pipeline stage, expert rank or group of experts.
  using Key = std::tuple<std::string, int, int>;
  void number_layers(ShardSet const& set, ModelSizes const& sizes);
  void number_experts(ShardSet const& set, ModelSizes const& sizes);

  [[nodiscard]] int member(ShardPlace const& place) const noexcept { return place.ep * groups_ + place.moe; }

  int groups_ = 1;  ///< of experts in each expert rank
  std::map<Key, std::int64_t> layer_offsets_{};
  std::map<Key, std::int64_t> expert_offsets_{};
};

}  // namespace crossrank::checkpoint
