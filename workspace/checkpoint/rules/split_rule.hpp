#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "workspace/checkpoint/rules/sharding_decision.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"

namespace crossrank::checkpoint {

/// A range along one dimension that goes from the whole tensor into a shard.
struct SplitRange {
  std::int64_t from = 0;    ///< first entry in the whole tensor
  std::int64_t to = 0;      ///< first entry in the shard
  std::int64_t length = 0;  ///< entries of the stored tensor
  bool operator==(SplitRange const&) const = default;
};

/// Begin and length along the outputs or inputs of a layer, in numbers.
struct NumberRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// How one tensor of a whole model is cut for ranks: the inverse of a `MergeRule`.
///
/// A shard is a box of the whole tensor per piece: all of every dimension but `axis` and, with `experts`, the first. To
/// go from shards to other shards, lay these boxes over those of the merge.
struct SplitRule {
  int axis = -1;                                 ///< -1: every rank gets all of it
  std::vector<std::vector<SplitRange>> ranks{};  ///< per rank, in the order of the shard; empty where `axis` is -1
  std::int64_t subtract_per_group = 0;  ///< group ids: rank r's become smaller by r times this, so that they start at 0
  int set_element = -1;                 ///< an original shape: this element becomes `elements[r]` on rank r
  std::vector<std::int64_t> elements{};
  std::vector<NumberRange> experts{};  ///< along the first dimension of a stack, per rank; empty: every rank has all
  bool drop = false;
  std::string reason{};

  /// Length of rank `rank`'s shard along `axis`.
  [[nodiscard]] std::int64_t length(int rank) const;
  /// Shape of rank `rank`'s shard of a tensor of shape `whole`.
  [[nodiscard]] Shape shape(Shape const& whole, int rank) const;
};

/// How a whole layer is spread, in numbers.
struct LayerSplit {
  ShardAxis shard_axis = ShardAxis::replicate;    ///< replicate, column or row
  std::vector<std::vector<NumberRange>> ranks{};  ///< per rank, in the order of its shard
  std::string why{};
};

/// Spreads a layer of `outputs` and `inputs` numbers over `ranks`: whole heads, fused parts each for itself, fewer
/// key/value heads than ranks as copies. What a vocabulary does not divide into is left whole.
///
/// `UsageError` when heads or widths do not divide, `FormatError` when the layer is not as long as rule and config say
/// or the config does not give the parts of a fused one.
[[nodiscard]] LayerSplit split_layer(std::string_view module, std::int64_t outputs, std::int64_t inputs,
                                     LayerRule const& rule, ModelSizes const& sizes, int ranks);

/// The split of one tensor of that layer. `FormatError` when a shard boundary falls inside what shares a stored value.
[[nodiscard]] SplitRule split_tensor(SourceTensor const& tensor, TensorRole role, LayerFormat const& format,
                                     LayerHints const& hints, LayerSplit const& split);

}  // namespace crossrank::checkpoint
