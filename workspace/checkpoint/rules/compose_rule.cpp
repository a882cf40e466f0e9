#include "workspace/checkpoint/rules/compose_rule.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(LayerOnRanks const& layer, std::string message, std::string expected, std::string got,
                         std::string hint) {
  throw FormatError({.operation = "merge rules",
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = layer.tensors.front()->name,
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::shape)});
}

/// Returns the rule for a single value of the whole layer.
MergeRule single_rule(LayerOnRanks const& layer, LayerSharding const& sharding) {
  require_same_shape_and_dtype(layer.tensors);
  switch (layer.role) {
    case TensorRole::input_scale:
    case TensorRole::output_scale:
      return {.kind = Reduce{ReduceOp::max}, .reason = "a scale of activations: the largest covers all ranks"};
    case TensorRole::input_divisor:
      return {.kind = Reduce{ReduceOp::min}, .reason = "a divisor of activations: the smallest covers all ranks"};
    case TensorRole::cache_scale:
      return {.kind = Reduce{ReduceOp::max}, .reason = "a scale of the cache: the largest covers all ranks"};
    default:
      return {.kind = KeepReplica{},
              .reason = "a " + std::string(to_string(layer.role)) + " of a " +
                        std::string(to_string(sharding.shard_axis)) + "-parallel layer: must agree"};
  }
}

/// Checks that the boundaries between shards, and between the parts in them, do not split stored elements.
void check_shard_boundaries(LayerOnRanks const& layer, LayerSharding const& sharding, std::int64_t unit,
                            bool last_may_be_short) {
  auto const weight = std::accumulate(sharding.parts.begin(), sharding.parts.end(), std::int64_t{0});
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) {
    auto const& format = layer.formats[rank];
    auto const length = sharding.shard_axis == ShardAxis::column ? format.outputs() : format.inputs();
    auto const parts = sharding.parts.empty() ? std::vector<std::int64_t>{1} : sharding.parts;
    auto const sum = sharding.parts.empty() ? 1 : std::max<std::int64_t>(1, weight);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto const piece = length / sum * parts[i];
      bool const last = rank + 1 == layer.formats.size() && parts.size() == 1;
      if (length % sum == 0 && (piece % unit == 0 || (last && last_may_be_short))) continue;
      auto const side = std::string(sharding.shard_axis == ShardAxis::column ? " outputs" : " inputs");
      refuse(layer, "a shard boundary splits a stored value (" + std::string(to_string(format.format())) + ")",
             "multiples of " + std::to_string(unit) + side,
             std::to_string(piece) + side + " on rank " + std::to_string(rank),
             format.format() == NumberFormat::fp8_block
                 ? "`policy` requantize computes these blocks anew; or merge the unquantized weights and quantize again"
                 : "merge the unquantized weights and quantize again");
    }
  }
}

MergeRule group_ids_rule(LayerOnRanks const& layer, LayerSharding const& sharding, int axis) {
  auto const groups = [&](LayerFormat const& format) {
    return format.group() > 0 ? divide_up(format.inputs(), format.group()) : std::int64_t{1};
  };
  auto const per_rank = groups(layer.formats.front());
  for (auto const& format : layer.formats) {
    if (groups(format) != per_rank) {
      refuse(layer, "the ranks have different numbers of groups", std::to_string(per_rank),
             std::to_string(groups(format)), "merge the unquantized weights and quantize again");
    }
  }
  return {.kind = Concatenate{.axis = axis, .add_per_rank = per_rank},
          .reason = "group ids of a " + std::string(to_string(sharding.shard_axis)) +
                    "-parallel layer: those of rank r grow by r times " + std::to_string(per_rank)};
}

void refuse_activation_order(LayerOnRanks const& layer, LayerSharding const& sharding) {
  if (sharding.shard_axis != ShardAxis::row || !layer.formats.front().activation_order()) return;
  auto const format = layer.formats.front().format();
  if (format != NumberFormat::gptq && format != NumberFormat::compressed_int) return;
  refuse(layer, "groups in the order of activations cannot be joined along the inputs", "groups in the order of inputs",
         "desc_act", "quantize the whole model, or without activation order");
}

MergeRule concat_rule(LayerOnRanks const& layer, LayerSharding const& sharding, TensorAxes const& axes) {
  bool const column = sharding.shard_axis == ShardAxis::column;
  int const axis = column ? axes.out : axes.in;
  auto const unit = column ? axes.out_unit : axes.in_unit;
  auto const format = layer.formats.front().format();
  require_same_shape_and_dtype(layer.tensors, axis);
  refuse_activation_order(layer, sharding);
  if (layer.role == TensorRole::group_ids) return group_ids_rule(layer, sharding, axis);
  bool const by_block = layer.formats.front().has_blocks();
  check_shard_boundaries(layer, sharding, unit, by_block || layer.role == TensorRole::low_rank_a);
  auto const group = layer.formats.front().group();
  if (!column && group > 0 && layer.role == TensorRole::weight)
    check_shard_boundaries(layer, sharding, group, by_block);
  Concatenate concat{.axis = axis,
                     .parts = sharding.parts,
                     .replicas = sharding.replicas,
                     .part_replicas = sharding.part_replicas,
                     .rank_block = sharding.rank_block,
                     .unproven = sharding.unproven};
  if (sharding.true_outputs >= 0 && column) {
    if (!by_block && layer.role != TensorRole::low_rank_a && sharding.true_outputs % unit != 0) {
      refuse(
          layer, "the end of the vocabulary splits a stored value (" + std::string(to_string(format)) + ")",
          "multiples of " + std::to_string(unit) + " tokens", std::to_string(sharding.true_outputs) + " tokens",
          "merge the unquantized weights and quantize again; or keep the padding: set the config's vocab_size to the "
          "number of rows");
    }
    concat.true_size = axes.out_length(sharding.true_outputs);
  }
  auto reason = std::string(to_string(sharding.shard_axis)) + "-parallel, along dimension " + std::to_string(axis) +
                ": " + sharding.why;
  if (format != NumberFormat::plain) reason += "; " + std::string(to_string(format));
  return {.kind = std::move(concat), .reason = std::move(reason)};
}

/// Returns whether every rank has the whole bias of a column-parallel layer. `FormatError` for a bias that fits neither
/// the shard nor the layer.
bool has_whole_bias(LayerOnRanks const& layer) {
  auto const length = [&](std::size_t rank) {
    auto const& shape = layer.tensors[rank]->shape;
    return shape.empty() ? std::int64_t{0} : shape[shape.size() - 1];
  };
  bool own = true;
  bool whole = true;
  std::int64_t all = 0;
  for (auto const& format : layer.formats) all += format.outputs();
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) {
    auto const outputs = layer.formats[rank].outputs();
    own = own && length(rank) == outputs;
    whole = whole && length(rank) == length(0) && length(rank) > outputs && length(rank) <= all;
    if (own || whole) continue;
    refuse(layer, "the length of the bias does not match its layer",
           std::to_string(outputs) + " values on rank " + std::to_string(rank), std::to_string(length(rank)),
           "check that all files are of one model");
  }
  return !own;
}

}  // namespace

void require_same_shape_and_dtype(std::span<SourceTensor const* const> tensors, std::optional<int> except_axis) {
  auto const& first = *tensors.front();
  for (std::size_t rank = 1; rank < tensors.size(); ++rank) {
    auto const& other = *tensors[rank];
    bool alike = other.dtype == first.dtype && other.shape.size() == first.shape.size();
    for (std::size_t d = 0; alike && d < first.shape.size(); ++d) {
      alike = static_cast<int>(d) == except_axis || other.shape[d] == first.shape[d];
    }
    if (alike) continue;
    throw FormatError({.operation = "merge rules",
                       .message = "rank " + std::to_string(rank) + " has another tensor than rank 0" +
                                  (except_axis ? " beside dimension " + std::to_string(*except_axis) : std::string()),
                       .expected = std::string(name_of(first.dtype)) + " " + to_string(first.shape),
                       .got = std::string(name_of(other.dtype)) + " " + to_string(other.shape),
                       .resource = first.name,
                       .hint = "check that all files are of one model",
                       .failed_ranks = {static_cast<int>(rank)},
                       .section = to_string(ErrorSection::shape)});
  }
}

MergeRule compose_rule(LayerOnRanks const& layer, LayerSharding const& sharding) {
  if (sharding.shard_axis != ShardAxis::column && sharding.shard_axis != ShardAxis::row) {
    require_same_shape_and_dtype(layer.tensors);
    return {.kind = KeepReplica{}, .reason = "replicated: " + sharding.why};
  }
  auto const axes = layer.formats.front().axes(layer.role, *layer.tensors.front());
  for (std::size_t rank = 1; rank < layer.formats.size(); ++rank) {
    if (layer.formats[rank].format() != layer.formats.front().format()) {
      refuse(layer, "the ranks store this layer in different formats",
             std::string(to_string(layer.formats.front().format())),
             std::string(to_string(layer.formats[rank].format())) + " on rank " + std::to_string(rank),
             "check that all files are of one model");
    }
    (void)layer.formats[rank].axes(layer.role, *layer.tensors[rank]);
  }
  if (layer.role == TensorRole::weight_shape) {
    require_same_shape_and_dtype(layer.tensors);
    return {.kind = SumElement{.element = sharding.shard_axis == ShardAxis::column ? 0 : 1,
                               .parts = sharding.parts,
                               .replicas = sharding.replicas,
                               .part_replicas = sharding.part_replicas},
            .reason = "the original shape: recomputed"};
  }
  if (axes.single) return single_rule(layer, sharding);
  if (layer.role == TensorRole::bias && sharding.shard_axis == ShardAxis::column && has_whole_bias(layer)) {
    require_same_shape_and_dtype(layer.tensors);
    return {.kind = KeepReplica{}, .reason = "every rank has the whole bias: must agree"};
  }
  if ((sharding.shard_axis == ShardAxis::column ? axes.out : axes.in) < 0) {
    require_same_shape_and_dtype(layer.tensors);
    auto const side = std::string(sharding.shard_axis == ShardAxis::column ? "outputs" : "inputs");
    return {.kind = KeepReplica{},
            .reason = "a " + std::string(to_string(layer.role)) + " that does not depend on the " + side + " of a " +
                      std::string(to_string(sharding.shard_axis)) + "-parallel layer: must agree"};
  }
  return concat_rule(layer, sharding, axes);
}

}  // namespace crossrank::checkpoint
