#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/scales/group_size.hpp"
#include "workspace/checkpoint/rules/scales/weight_shape.hpp"

namespace crossrank::checkpoint {
namespace {

class ValueResolver {
 public:
  ValueResolver(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding,
                ScalePolicy policy)
      : rule_(rule), layer_(layer), values_(values), sharding_(sharding), policy_(policy) {}

  void resolve() {
    if (sharding_.shard_axis != ShardAxis::column && sharding_.shard_axis != ShardAxis::row) return;
    if (layer_.role == TensorRole::weight_shape) return resolve_weight_shape(rule_, layer_, values_, sharding_);
    // All inputs have one scale: the ids of every rank belong to the same group.
    bool const whole = layer_.hints.whole_inputs && layer_.formats.front().group() == 0;
    bool const shared = share_one_scale(layer_, values_, sharding_);
    if (auto* const concat = concatenation(); concat != nullptr && layer_.role == TensorRole::group_ids) {
      if (shared || whole) concat->add_per_rank = 0;
      resolve_group_ids(concat->add_per_rank);
    }
    if (policy_ == ScalePolicy::exact) return;
    switch (layer_.formats.front().format()) {
      case NumberFormat::fp8_tensor:
      case NumberFormat::fp8_channel: resolve_scaled(RequantizeKernel::scale_f8); break;
      case NumberFormat::int8: resolve_scaled(RequantizeKernel::scale_i8); break;
      case NumberFormat::nvfp4: resolve_nvfp4(); break;
      case NumberFormat::int4_modelopt: resolve_common(TensorRole::weight_scale_2, ReduceOp::max); break;
      default: break;
    }
  }

 private:
  /// One list of scales per rank.
  using Scales = std::vector<std::vector<float>>;

  Concatenate* concatenation() { return std::get_if<Concatenate>(&rule_.kind); }

  bool has(TensorRole role) const {
    return std::all_of(values_.layers.begin(), values_.layers.end(),
                       [&](LayerTensors const& tensors) { return tensors[role] != nullptr; });
  }

  /// Returns the scales of the ranks if they differ; nothing if they agree or if there are none.
  std::optional<Scales> differing(TensorRole role) const {
    if (!has(role)) return std::nullopt;
    Scales scales;
    for (std::size_t rank = 0; rank < values_.layers.size(); ++rank) {
      scales.push_back(read_scales(values_.stored(rank, role)));
      if (scales.back().size() != scales.front().size()) return std::nullopt;
    }
    bool const same =
        std::all_of(scales.begin(), scales.end(), [&](auto const& other) { return other == scales.front(); });
    if (same) return std::nullopt;
    return scales;
  }

  /// Returns old scale divided by common scale, or common divisor divided by old divisor; at most 1.
  Scales factors(Scales const& scales, ReduceOp op) const {
    auto result = scales;
    for (std::size_t i = 0; i < scales.front().size(); ++i) {
      float common = scales.front()[i];
      for (std::size_t rank = 0; rank < scales.size(); ++rank) {
        auto const own = scales[rank][i];
        if (!(own > 0) || !std::isfinite(own))
          refuse_scale(layer_, rank, own, "finite numbers above 0", "quantize the model again: this scale is damaged");
        common = op == ReduceOp::max ? std::max(common, own) : std::min(common, own);
      }
      for (std::size_t rank = 0; rank < scales.size(); ++rank)
        result[rank][i] = op == ReduceOp::max ? scales[rank][i] / common : common / scales[rank][i];
    }
    return result;
  }

  void resolve_common(TensorRole role, ReduceOp op) {
    if (layer_.role != role || !differing(role)) return;
    rule_.kind = Reduce{op};
    rule_.reason +=
        "; ranks differ: the " + std::string(op == ReduceOp::max ? "largest" : "smallest") + " holds for all";
  }

  /// New block scales need the values of a block side by side.
  void require_adjacent_blocks() const {
    for (std::size_t rank = 0; rank < values_.layers.size(); ++rank) {
      auto const& weight = *values_.layers[rank][TensorRole::weight];
      auto const& scale = *values_.layers[rank][TensorRole::weight_scale];
      bool adjacent = weight.shape.size() == scale.shape.size();
      for (std::size_t d = 0; adjacent && d + 1 < weight.shape.size(); ++d)
        adjacent = weight.shape[d] == scale.shape[d];
      if (adjacent) continue;
      throw FormatError(
          {.operation = "merge rules",
           .message = "the values under one block scale are not side by side, so they are not quantized again",
           .expected = "blocks along the last dimension",
           .got = to_string(scale.shape) + " scales for a weight of " + to_string(weight.shape),
           .resource = layer_.tensors.front()->name,
           .hint = "pass the policy `rescale`",
           .failed_ranks = {static_cast<int>(rank)},
           .section = to_string(ErrorSection::scales)});
    }
  }

  /// Replicas are compared as they are stored, so their scales must agree.
  void require_equal_scales_of_replicas(Concatenate const& concat, Scales const& factors) const {
    auto copies = concat.part_replicas;
    copies.push_back(concat.replicas);
    for (int const count : copies) {
      for (std::size_t rank = 0; count > 1 && rank < factors.size(); ++rank) {
        auto const first = rank / as_size(count) * as_size(count);
        if (factors[rank] == factors[first]) continue;
        throw FormatError(
            {.operation = "merge rules",
             .message = "a part of this layer is on several ranks, which have stored it under different scales",
             .expected = "equal scales on the ranks " + std::to_string(first) + " to " +
                         std::to_string(first + as_size(count) - 1),
             .got = "another scale on rank " + std::to_string(rank),
             .resource = layer_.tensors[rank]->name,
             .hint = "merge the unquantized weights and quantize again",
             .failed_ranks = {static_cast<int>(first), static_cast<int>(rank)},
             .section = to_string(ErrorSection::scales)});
      }
    }
  }

  void requantize(Concatenate& concat, RequantizeKernel kernel, int axis, Scales const& factors, TensorRole partner) {
    require_equal_scales_of_replicas(concat, factors);
    std::vector<Requantization::Shard> shards;
    for (std::size_t rank = 0; rank < values_.layers.size(); ++rank) {
      Requantization::Shard shard;
      shard.own = values_.stored(rank, layer_.role);
      shard.factors = factors[rank];
      if (kernel == RequantizeKernel::fp4_values || kernel == RequantizeKernel::fp4_scales) {
        shard.partner = values_.stored(rank, partner);
      }
      shards.push_back(std::move(shard));
    }
    auto made = std::make_shared<Requantization const>(kernel, axis, std::move(shards));
    rule_.reason += "; scales of the ranks differ: " + made->bound();
    concat.requantization = std::move(made);
  }

  /// Resolves weights with one scale, or with one scale per output that differs between the ranks of a row-parallel
  /// layer.
  void resolve_scaled(RequantizeKernel kernel) {
    auto const role = TensorRole::weight_scale;
    if (!has(role) || (layer_.role != role && layer_.role != TensorRole::weight)) return;
    // Stored values are relative to their zero points, so they cannot be rescaled. The scales must agree.
    if (has(TensorRole::zeros)) return;
    auto const axes = layer_.formats.front().axes(role, *values_.layers.front()[role]);
    bool const shared = axes.single || (sharding_.shard_axis == ShardAxis::row ? axes.in : axes.out) < 0;
    if (!shared) return;
    if (layer_.role == role) return resolve_common(role, ReduceOp::max);
    auto const scales = differing(role);
    auto* const concat = concatenation();
    if (!scales || concat == nullptr) return;
    auto const weight = layer_.formats.front().axes(TensorRole::weight, *layer_.tensors.front());
    requantize(*concat, kernel, axes.single ? 0 : weight.out, factors(*scales, ReduceOp::max), role);
  }

  void resolve_nvfp4() {
    bool const divisor = has(TensorRole::global_scale);
    auto const role = divisor ? TensorRole::global_scale : TensorRole::weight_scale_2;
    auto const op = divisor ? ReduceOp::min : ReduceOp::max;
    if (layer_.role == role) return resolve_common(role, op);
    bool const anew = policy_ == ScalePolicy::requantize;
    bool const is_scale = layer_.role == TensorRole::weight_scale;
    auto* const concat = concatenation();
    if (concat == nullptr || !(is_scale || (anew && layer_.role == TensorRole::weight))) return;
    auto const scales = differing(role);
    if (!scales) return;
    auto const by = factors(*scales, op);
    if (!anew) return requantize(*concat, RequantizeKernel::scale_f8, 0, by, role);
    require_adjacent_blocks();
    if (is_scale) return requantize(*concat, RequantizeKernel::fp4_scales, 0, by, TensorRole::weight);
    requantize(*concat, RequantizeKernel::fp4_values, 0, by, TensorRole::weight_scale);
  }

  /// Decides about group ids: ids that start at 0 in each shard grow from rank to rank, ids of the whole layer stay.
  void resolve_group_ids(std::int64_t& add_per_rank) const {
    bool local = true;
    bool global = true;
    bool unset = true;
    for (std::size_t rank = 0; rank < values_.layers.size(); ++rank) {
      auto const ids = read_integers(values_.stored(rank, TensorRole::group_ids));
      auto const& format = layer_.formats[rank];
      auto const group = format.group() > 0 ? format.group() : std::max<std::int64_t>(format.inputs(), 1);
      auto const before = static_cast<std::int64_t>(rank) * add_per_rank;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        auto const expected = static_cast<std::int64_t>(i) / group;
        local = local && ids[i] == expected;
        global = global && ids[i] == expected + before;
        unset = unset && ids[i] == -1;
      }
    }
    if (global || unset) add_per_rank = 0;
    if (local || global || unset) return;
    throw FormatError({.operation = "merge rules",
                       .message = "group ids that do not follow the inputs cannot be concatenated along them",
                       .expected = "ids that grow by one per group, from 0 in each shard or through all of them",
                       .got = "groups in the order of activations",
                       .resource = layer_.tensors.front()->name,
                       .hint = "quantize the whole model, or without activation order",
                       .section = to_string(ErrorSection::group_ids)});
  }

  MergeRule& rule_;
  LayerOnRanks const& layer_;
  LayerValues const& values_;
  LayerSharding const& sharding_;
  ScalePolicy policy_;
};

}  // namespace

StoredTensor LayerValues::stored(std::size_t rank, TensorRole role) const {
  return {sources[rank], as_size(layers[rank][role] - sources[rank]->tensors().data())};
}

void refuse_scale(LayerOnRanks const& layer, std::size_t rank, float value, std::string expected, std::string hint) {
  throw FormatError({.operation = "merge rules",
                     .message = "the values cannot be requantized to this scale",
                     .expected = std::move(expected),
                     .got = std::to_string(value) + " on rank " + std::to_string(rank),
                     .resource = layer.tensors.front()->name,
                     .hint = std::move(hint),
                     .failed_ranks = {static_cast<int>(rank)},
                     .section = to_string(ErrorSection::scales)});
}

void resolve_values(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                    LayerSharding const& sharding, ScalePolicy policy) {
  ValueResolver(rule, layer, values, sharding, policy).resolve();
}

}  // namespace crossrank::checkpoint
