#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workspace/checkpoint/rules/sharding_decision.hpp"
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

/// The tensors that are asked about, of the ranks that have them, and the number of each one's source.
struct RankTensors {
  std::vector<SourceTensor const*> tensors{};
  std::vector<std::size_t> sources{};
  std::size_t ranks = 0;  ///< of the group, also those that have none
};

/// What a rule that renames calls a tensor.
[[nodiscard]] std::string new_name(LayerRule const& rule, std::string_view name, TensorName const& parsed);

/// The layers of one source by name.
using Layers = std::unordered_map<std::string_view, LayerTensors>;

/// What a rule set knows; made once, then only read.
struct RuleSet::State {
  State(ShardSet const& shards, RuleFile rule_file, ScalePolicy scale_policy);

  /// `UsageError` when the description is none of the set's.
  [[nodiscard]] std::size_t source_of(SourceTensor const* tensor) const;
  /// The first rule that matches; null for none.
  [[nodiscard]] LayerRule const* find_rule(std::string_view name, TensorName const& parsed,
                                           LayerTensors const& layer) const;
  /// The same for a tensor of the result: rules that rename hold for the names that they give.
  [[nodiscard]] LayerRule const* find_rule_of_result(std::string_view name, TensorName const& parsed,
                                                     LayerTensors const& layer) const;
  /// Whether an expert is only on these of the tensor-parallel ranks: on one, whole, or on those of its group.
  [[nodiscard]] bool is_on_some_ranks(std::string_view name, RankTensors const& asked) const;
  /// Patterns of all layers that no rule matches.
  [[nodiscard]] std::vector<std::string> uncovered() const;
  /// The file of the tensor-parallel rank `tp` beside a source.
  [[nodiscard]] std::string file_of(std::size_t beside, int tp) const;
  /// What the config says of the layer that a module of a source is in.
  [[nodiscard]] ModelSizes const& sizes_of(std::string_view module, std::size_t source) const;
  /// What config and the shapes of all layers say of one layer's numbers.
  [[nodiscard]] LayerHints hints_of(std::string_view module) const;
  [[nodiscard]] MergeRule decide(std::string_view name, RankTensors const& asked) const;
  /// How the rule's layer lies in its weight; stacks of experts show it by where the hidden width stands.
  [[nodiscard]] LayerOrder order_of(LayerRule const& rule, LayerTensors const& layer, Layers const& layers_of) const;
  /// What a fused layer becomes in models of this type; nothing where it stays.
  [[nodiscard]] FusedParts parts_of(LayerRule const& rule, TensorName const& parsed) const;
  /// The model's own name for a stack of plain weights that has another program's; empty for all others.
  [[nodiscard]] std::string own_stack_name(std::string_view name, TensorName const& parsed, std::size_t source) const;
  [[nodiscard]] bool is_dropped(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const;
  /// config.json with what the rule file adds.
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
  std::vector<LayerRule> rules{};  ///< the file's first
  std::vector<Layers> layers{};    ///< per source

 private:
  /// Where the descriptions of one source stand in memory.
  struct Extent {
    SourceTensor const* begin = nullptr;
    SourceTensor const* end = nullptr;
    std::size_t source = 0;
  };
  void index();
  /// Whether the rule is for models such as this.
  [[nodiscard]] bool applies_to_model(LayerRule const& rule) const;
  /// Whether a head has other numbers than the embedding that the config says it is; what is not as the embedding is
  /// cannot be compared.
  [[nodiscard]] bool differs_from_embedding(TensorName const& parsed, RankTensors const& asked) const;
  [[nodiscard]] std::optional<bool> sibling_transposed(SourceTensor const& weight, Layers const& layers_of) const;
  [[nodiscard]] bool has_tensor(std::string const& name) const;
  /// The rule as the shards' fused layers are laid out.
  [[nodiscard]] LayerRule as_laid_out(LayerRule const& rule) const;
  /// Whether nothing but habit says that the parts of a fused layer were cut one by one.
  [[nodiscard]] bool is_assumed(LayerRule const& rule, LayerSharding const& sharding) const;
  [[nodiscard]] MergeRule by_layer(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const;
  [[nodiscard]] bool holds_copies(LayerRule const& rule, ShardingQuery const& question, LayerValues const& values,
                                  ModelSizes const* tower) const;
  /// Whether the tensor-parallel ranks hold different experts.
  [[nodiscard]] bool has_expert_groups(RankTensors const& asked) const;
  /// Whether the ranks count experts from 0 each, so that one name is of several.
  [[nodiscard]] bool are_different_experts(std::string_view name, RankTensors const& asked) const;
  [[nodiscard]] bool has_expert_dimension(TensorName const& parsed, RankTensors const& asked) const;
  /// Stacks without further expert-parallel ranks hold all experts of the config. `FormatError`.
  void require_all_experts(TensorName const& parsed, SourceTensor const& tensor) const;
  /// Lets the stacks of experts of the expert-parallel ranks follow each other.
  void concatenate_stacks(MergeRule& merged, TensorName const& parsed, RankTensors const& asked) const;

  std::vector<Extent> extents_{};  ///< in order of memory
  bool has_embedding_ = false;
  std::int64_t likely_group_ = 0;
};

}  // namespace crossrank::checkpoint
