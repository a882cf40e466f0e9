#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "workspace/checkpoint/rules/layer_sharding.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"

namespace crossrank::checkpoint {

/// A range along one dimension that is copied from the whole tensor to a shard.
struct SplitRange {
  std::int64_t from = 0;    ///< first entry in the whole tensor
  std::int64_t to = 0;      ///< first entry in the shard
  std::int64_t length = 0;  ///< number of entries of the stored tensor
  bool operator==(SplitRange const&) const = default;
};

/// A range along the outputs or inputs of a layer, in numbers.
struct NumberRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// How one tensor of a whole model is split over ranks: the inverse of a `MergeRule`.
///
/// Each piece of a shard is a box of the whole tensor. It has the full length of each dimension except `axis` and, with
/// `experts`, the first dimension.
struct SplitRule {
  int axis = -1;                                 ///< -1: every rank gets all of it
  std::vector<std::vector<SplitRange>> ranks{};  ///< per rank, in the order of the shard; empty if `axis` is -1
  std::int64_t subtract_per_group = 0;  ///< group ids: those of rank r shrink by r times this, so that they start at 0
  int set_element = -1;                 ///< an original shape: this element becomes `elements[r]` on rank r
  std::vector<std::int64_t> elements{};
  std::vector<NumberRange> experts{};  ///< per rank, along the first dimension of a stack; empty: all experts
  bool drop = false;
  std::string reason{};

  /// Returns the length of the shard of `rank` along `axis`.
  [[nodiscard]] std::int64_t length(int rank) const;
  /// Returns the shape of the shard of `rank` for a tensor of shape `whole`.
  [[nodiscard]] Shape shape(Shape const& whole, int rank) const;
};

/// How a whole layer is split, in numbers.
struct LayerSplit {
  ShardAxis shard_axis = ShardAxis::replicate;
  std::vector<std::vector<NumberRange>> ranks{};  ///< per rank, in the order of its shard
  std::string why{};
};

/// Throws `FormatError` for a weight of 4 bits that bitsandbytes has packed: one column of bytes without rows.
void refuse_flat_weight(SourceTensor const& weight, LayerHints const& hints);

/// Splits a layer of `outputs` times `inputs` numbers over `ranks`. Heads stay whole, the parts of a fused layer are
/// split one by one, and key/value heads are replicated if there are fewer heads than ranks. If a rule has `replicas`,
/// that many neighbouring ranks get the same piece. A vocabulary that the ranks do not divide stays whole.
///
/// `UsageError` when the ranks do not divide heads or widths, or when `replicas` does not divide the ranks.
/// `FormatError` when the length of the layer contradicts rule and config, or when the config does not give the parts
/// of a fused layer.
[[nodiscard]] LayerSplit split_layer(std::string_view module, std::int64_t outputs, std::int64_t inputs,
                                     LayerRule const& rule, ModelSizes const& sizes, int ranks);

/// Returns the split of one tensor of that layer. `FormatError` when a shard boundary splits a stored value.
[[nodiscard]] SplitRule split_tensor(SourceTensor const& tensor, TensorRole role, LayerFormat const& format,
                                     LayerSplit const& split);

}  // namespace crossrank::checkpoint
