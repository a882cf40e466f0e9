#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "workspace/checkpoint/rules/layer_sharding.hpp"
#include "workspace/checkpoint/model/layer_sizes.hpp"
#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/rules/compose_rule.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"
#include "workspace/checkpoint/rules/rule_set/global_names.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"
#include "workspace/checkpoint/rules/towers.hpp"
#include "workspace/checkpoint/rules/unfuse.hpp"

namespace crossrank::checkpoint {

/// The shards of one tensor on the ranks that have it, and the source of each.
struct RankTensors {
  std::vector<SourceTensor const*> tensors{};
  std::vector<std::size_t> sources{};
  std::size_t ranks = 0;  ///< size of the group, including ranks without the tensor
};

/// Returns the name that a rule with `rename` gives to a tensor.
[[nodiscard]] std::string new_name(LayerRule const& rule, std::string_view name, TensorName const& parsed);

/// The layers of one source by name.
using Layers = std::unordered_map<std::string_view, LayerTensors>;

/// The state of a rule set, constant after construction.
struct RuleSet::State {
  State(ShardSet const& shards, RuleFile rule_file, ScalePolicy scale_policy);

  /// Returns the source of a description; of several that share it, the first. `UsageError` when the set does not
  /// contain it.
  [[nodiscard]] std::size_t source_of(SourceTensor const* tensor) const;
  /// Returns the layers of a source.
  [[nodiscard]] Layers const& layers_of(std::size_t source) const { return layers_[listing_[source]]; }
  /// Returns the first rule that matches, or null.
  [[nodiscard]] LayerRule const* find_rule(std::string_view name, TensorName const& parsed,
                                           LayerTensors const& layer) const;
  /// Returns the first rule that matches a tensor of the result. Rules with `rename` match their new names. For a fused
  /// layer, returns the rule that separates it.
  [[nodiscard]] LayerRule const* find_rule_of_result(std::string_view name, TensorName const& parsed,
                                                     LayerTensors const& layer) const;
  /// Returns whether it is an expert that only these ranks have: one rank has it whole, or the ranks of its group do.
  [[nodiscard]] bool is_on_some_ranks(std::string_view name, RankTensors const& asked) const;
  /// Throws a `FormatError` about a tensor that `missing` ranks of its group lack. `having` lists the others.
  [[noreturn]] void refuse_missing(std::string_view name, RankTensors const& having, std::vector<int> missing) const;
  /// Throws a `FormatError` if only some of the ranks that have a tensor of a layer have its weight. Returns whether
  /// they have it.
  bool require_weight(TensorName const& parsed, RankTensors const& asked) const;
  /// Returns patterns of all layers that no rule matches.
  [[nodiscard]] std::vector<std::string> uncovered() const;
  /// Returns the file of tensor-parallel rank `tp` in the cell of a source.
  [[nodiscard]] std::string file_of(std::size_t beside, int tp) const;
  /// Returns the sizes in the config for the layer of a module.
  [[nodiscard]] ModelSizes const& sizes_of(std::string_view module, std::size_t source) const;
  /// Returns the number format of a layer as config and the shapes of all layers give it.
  [[nodiscard]] LayerHints hints_of(std::string_view module) const;
  /// Returns the rule for a tensor that `rule` matches, or that no rule matches (null). A name that the rule gives is
  /// one of the whole model.
  [[nodiscard]] MergeRule decide(LayerRule const* rule, std::string_view name, RankTensors const& asked) const;
  /// Returns the rule for a scale of the key/value cache that no rule of a layer covers.
  [[nodiscard]] MergeRule merge_cache_scale(std::string_view name, RankTensors const& asked) const;
  /// Returns the order of dimensions in a layer's weight. In stacks of experts the place of the hidden width gives it.
  [[nodiscard]] LayerOrder order_of(LayerRule const& rule, LayerTensors const& layer, Layers const& layers_of) const;
  /// Returns the layers that a fused layer is split into in models of this type; empty if it stays fused.
  [[nodiscard]] FusedParts parts_of(LayerRule const& rule, TensorName const& parsed, std::size_t source) const;
  /// Returns the layers that a rule of the file makes of a fused layer; empty if it makes one. Throws `FormatError` if
  /// the config does not give their widths.
  [[nodiscard]] FusedParts named_parts_of(LayerRule const& rule, TensorName const& parsed, std::size_t source) const;
  /// Returns the place of a tensor in the fused layer that a rule of the file makes of several layers. Throws
  /// `FormatError` if its rows are not dimension 0, or if the config does not give the widths.
  [[nodiscard]] FusedPlace fused_place_of(LayerRule const& rule, TensorName const& parsed,
                                          RankTensors const& asked) const;
  /// Throws `FormatError` if vLLM has changed the order of the outputs in a way that no merge undoes.
  void refuse_order_of_vllm(LayerRule const& rule, std::string_view name, TensorName const& parsed) const;
  /// Returns the name of the embedding for an output head that is all that vLLM has saved of two tied layers. Empty for
  /// other tensors.
  [[nodiscard]] std::string name_of_lost_embedding(TensorName const& parsed) const;
  /// Returns the model's name for a stack of plain weights under another program's name; empty for other tensors.
  [[nodiscard]] std::string own_stack_name(std::string_view name, TensorName const& parsed, std::size_t source) const;
  [[nodiscard]] bool is_dropped(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const;
  /// Returns config.json with the sizes of the rule file.
  [[nodiscard]] static Json full_config(ShardSet const& shards, RuleFile const& rule_file);

  ShardSet set{};
  ScalePolicy policy = ScalePolicy::exact;
  ModelSizes sizes{};
  LayerSizes layer_sizes{};
  Towers towers{};
  QuantizationHints hints{};
  GlobalNames grid{};
  ModelNames names{};
  RuleFile file{};
  std::vector<LayerRule> rules{};  ///< those of the file first

 private:
  /// The place in memory of the descriptions of a source.
  struct Extent {
    SourceTensor const* begin = nullptr;
    SourceTensor const* end = nullptr;
    std::size_t source = 0;  ///< the first, if several share them
  };
  void index();
  [[nodiscard]] bool others_have_expert_of(std::string_view name, std::size_t source) const;
  /// Returns whether a head differs from the embedding to which the config ties it. A head of another dtype or shape
  /// cannot be compared.
  [[nodiscard]] bool differs_from_embedding(TensorName const& parsed, RankTensors const& asked) const;
  [[nodiscard]] std::optional<bool> sibling_transposed(SourceTensor const& weight, Layers const& layers_of) const;
  [[nodiscard]] bool has_tensor(std::string const& name) const;
  /// Returns the rule adapted to the layout of the fused layers in the shards.
  [[nodiscard]] LayerRule as_laid_out(LayerRule const& rule, std::string_view module) const;
  /// Returns whether it is only an assumption that the parts of a fused layer were sharded one by one.
  [[nodiscard]] bool is_assumed(LayerRule const& rule, LayerSharding const& sharding) const;
  [[nodiscard]] MergeRule by_layer(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const;
  [[nodiscard]] bool holds_copies(LayerRule const& rule, ShardingQuery const& query, LayerValues const& values,
                                  ModelSizes const* tower) const;
  /// Returns the rule for a tensor whose experts differ between the groups of ranks.
  [[nodiscard]] MergeRule expert_groups() const;
  /// Returns whether the tensor-parallel ranks hold different experts.
  [[nodiscard]] bool has_expert_groups(RankTensors const& asked) const;
  /// Returns whether the experts start at 0 on each rank, so that one name stands for several experts.
  [[nodiscard]] bool are_different_experts(std::string_view name, RankTensors const& asked) const;
  [[nodiscard]] bool has_expert_dimension(TensorName const& parsed, RankTensors const& asked) const;
  /// Throws a `FormatError` unless a stack holds all experts of the config.
  void require_all_experts(TensorName const& parsed, SourceTensor const& tensor) const;
  /// Makes the rule concatenate the stacks of the expert-parallel ranks.
  void concatenate_stacks(MergeRule& merged, TensorName const& parsed, RankTensors const& asked) const;

  /// Returns the names of a source's experts, up to the number of the expert.
  [[nodiscard]] std::unordered_set<std::string_view> const& experts_of(std::size_t source) const {
    return experts_[listing_[source]];
  }

  std::vector<Extent> extents_{};       ///< in order of their addresses
  std::vector<std::size_t> listing_{};  ///< per source: number of its descriptions in the next two members
  std::vector<Layers> layers_{};
  std::vector<std::unordered_set<std::string_view>> experts_{};
  bool has_embedding_ = false;
  std::int64_t likely_group_ = 0;
};

}  // namespace crossrank::checkpoint
