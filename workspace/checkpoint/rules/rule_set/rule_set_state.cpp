#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/rules/builtin/builtin_rules.hpp"
#include "workspace/checkpoint/rules/scales/cache_scale.hpp"
#include "workspace/checkpoint/rules/scales/fp8_blocks.hpp"
#include "workspace/checkpoint/rules/scales/group_size.hpp"
#include "workspace/checkpoint/rules/rule_proposal.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"
#include "workspace/checkpoint/source/sampled_comparison.hpp"

namespace crossrank::checkpoint {
namespace {

bool ends_in(std::string_view name, std::initializer_list<std::string_view> elements) {
  auto const last = split_name(name).back();
  return std::find(elements.begin(), elements.end(), last) != elements.end();
}

bool is_embedding(std::string_view module) {
  return ends_in(module, {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings", "vocab_embedding"});
}

bool is_head(std::string_view module) { return ends_in(module, {"lm_head", "embed_out", "output_layer"}); }

/// Returns the place of `tensor`, one of the source's own descriptions.
SampledTensor placed(ShardSource const& source, SourceTensor const& tensor) {
  return {&source, as_size(&tensor - source.tensors().data())};
}

MergeRule reduced(std::vector<SourceTensor const*> const& tensors, ReduceOp op, std::string reason) {
  require_same_shape_and_dtype(tensors);
  return {.kind = Reduce{op}, .reason = std::move(reason)};
}

MergeRule joined(ShardedTensor const& rule, std::string_view pattern, std::vector<SourceTensor const*> const& tensors) {
  if (rule.axis >= static_cast<int>(tensors.front()->shape.size())) {
    throw FormatError({.operation = "merge rules",
                       .message = "the rule names dimension " + std::to_string(rule.axis),
                       .got = to_string(tensors.front()->shape),
                       .resource = tensors.front()->name,
                       .hint = "correct the rule " + std::string(pattern),
                       .section = to_string(ErrorSection::shape)});
  }
  require_same_shape_and_dtype(tensors, rule.axis);
  return {.kind = Concatenate{.axis = rule.axis,
                              .parts = rule.parts,
                              .replicas = rule.replicas,
                              .true_size = rule.true_size,
                              .add_per_rank = rule.add_per_rank},
          .reason = "joined along dimension " + std::to_string(rule.axis)};
}

/// Applies a rule of the file for one tensor without checks against the config.
MergeRule by_whole_name(LayerRule const& rule, std::vector<SourceTensor const*> const& tensors) {
  return std::visit(
      Overloads{[&](ReducedValue const& value) { return reduced(tensors, value.op, "made one value"); },
                [&](ShardedTensor const& sharded) { return joined(sharded, rule.pattern.text(), tensors); },
                [&](auto const&) {
                  require_same_shape_and_dtype(tensors);
                  return MergeRule{.kind = KeepReplica{}, .reason = "every rank has all of it"};
                }},
      rule.kind);
}

/// Returns the config with the hidden width. Meta's models may come without params.json. Their embedding is sharded by
/// tokens or by width, and their norm, which each rank has whole, tells which.
Json with_width(Json config, ShardSet const& set) {
  if (ModelSizes(config)[SizeName::hidden] || set.sources.empty()) return config;
  auto const tensors = set.sources.front()->tensors();
  auto const find = [&](std::string_view name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](auto const& tensor) { return tensor.name == name; });
  };
  auto const norm = find("norm.weight");
  if (norm == tensors.end() || norm->shape.size() != 1 || find("tok_embeddings.weight") == tensors.end()) return config;
  config["hidden_size"] = norm->shape[0];
  return config;
}

/// Returns whether transformers' own tensor parallelism sharded the model. Only it shards this layer along its outputs.
bool are_of_transformers(ShardSet const& set, ModelSizes const& sizes) {
  auto const tensors = set.sources.front()->tensors();
  return set.tp > 1 && std::any_of(tensors.begin(), tensors.end(), [&](SourceTensor const& tensor) {
           return tensor.name.ends_with("linear_attn.out_proj.weight") && tensor.shape.size() == 2 &&
                  sizes[SizeName::linear_value] == tensor.shape[1] &&
                  sizes[SizeName::hidden] == tensor.shape[0] * set.tp;
         });
}

}  // namespace

std::string new_name(LayerRule const& rule, std::string_view name, TensorName const& parsed) {
  auto const target = fill_numbers(rule.rename, rule.whole_name ? name : parsed.module);
  return rule.whole_name ? target : target + std::string(parsed.suffix);
}

RuleSet::State::State(ShardSet const& shards, RuleFile rule_file, ScalePolicy scale_policy)
    : set(shards),
      policy(scale_policy),
      sizes(with_width(full_config(shards, rule_file), shards)),
      layer_sizes(full_config(shards, rule_file)),
      towers(full_config(shards, rule_file)),
      hints(shards.config, shards.quantization),
      grid(shards, sizes),
      names(full_config(shards, rule_file)),
      file(std::move(rule_file)) {
  rules = file.rules;
  for (auto& rule : builtin_rules()) rules.push_back(std::move(rule));
  if (file.otherwise) rules.push_back(*file.otherwise);
  index();
  if (set.fused == FusedLayout::automatic && are_of_transformers(set, sizes)) set.fused = FusedLayout::plain;
  likely_group_ = common_group(layers_, hints);
}

Json RuleSet::State::full_config(ShardSet const& shards, RuleFile const& rule_file) {
  auto config = shards.lengths();
  for (auto const& [key, value] : rule_file.sizes.items()) {
    config[key] = value;
    // If a model has parts, the sizes belong to its language model.
    for (auto const* part : {"text_config", "llm_config"}) {
      if (config.contains(part) && config[part].is_object()) config[part][key] = value;
    }
  }
  return config;
}

void RuleSet::State::index() {
  std::unordered_map<SourceTensor const*, std::size_t> listings;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    auto const tensors = set.sources[i]->tensors();
    auto const [known, fresh] = listings.emplace(tensors.data(), layers_.size());
    listing_.push_back(known->second);
    if (!fresh) continue;
    extents_.push_back({tensors.data(), tensors.data() + tensors.size(), i});
    auto& layers = layers_.emplace_back();
    auto& experts = experts_.emplace_back();
    for (auto const& tensor : tensors) {
      auto const parsed = parse_tensor_name(tensor.name);
      layers[parsed.module].set(parsed.role, tensor);
      if (auto const expert = expert_prefix(tensor.name); !expert.empty()) experts.insert(expert);
      has_embedding_ = has_embedding_ || is_embedding(parsed.module);
    }
  }
  std::sort(extents_.begin(), extents_.end(),
            [](Extent const& a, Extent const& b) { return std::less<>{}(a.begin, b.begin); });
}

std::size_t RuleSet::State::source_of(SourceTensor const* tensor) const {
  auto const after = std::upper_bound(
      extents_.begin(), extents_.end(), tensor,
      [](SourceTensor const* wanted, Extent const& extent) { return std::less<>{}(wanted, extent.begin); });
  if (after != extents_.begin() && std::less<>{}(tensor, std::prev(after)->end)) return std::prev(after)->source;
  throw UsageError({.operation = "RuleSet",
                    .message = "this tensor does not belong to the set of the rules",
                    .resource = tensor->name});
}

std::string RuleSet::State::file_of(std::size_t beside, int tp) const {
  auto const place = set.places.at(beside);
  auto const found = std::find_if(set.places.begin(), set.places.end(), [&](ShardPlace const& other) {
    return other.tp == tp && other.pp == place.pp && other.ep == place.ep;
  });
  return found == set.places.end() ? "that rank" : set.sources[as_size(found - set.places.begin())]->name();
}

ModelSizes const& RuleSet::State::sizes_of(std::string_view module, std::size_t source) const {
  auto const* const own = layer_sizes.of(grid.global_name(module, set.places.at(source)));
  return own != nullptr ? *own : sizes;
}

LayerHints RuleSet::State::hints_of(std::string_view module) const {
  auto found = hints.of(module);
  if (found.group == 0 && !found.whole_inputs) found.likely_group = likely_group_;
  return found;
}

LayerRule const* RuleSet::State::find_rule(std::string_view name, TensorName const& parsed,
                                           LayerTensors const& layer) const {
  auto const* weight = layer[TensorRole::weight];
  LayerRule const* untied = nullptr;
  for (auto const& rule : rules) {
    if (!rule.applies_to_model(sizes.model_type())) continue;
    if (!rule.from_file && rule.order().stacked && (weight == nullptr || weight->shape.size() < 3)) continue;
    if (!rule.matches(name, parsed.module)) continue;
    // A tensor stays if the tensor that it is tied to is missing. Another rule says how it is sharded.
    auto const* const dropped = std::get_if<Dropped>(&rule.kind);
    if (dropped == nullptr || dropped->tied_to.empty() || has_tensor(dropped->tied_to)) return &rule;
    if (untied == nullptr) untied = &rule;
  }
  return untied;
}

LayerRule const* RuleSet::State::find_rule_of_result(std::string_view name, TensorName const& parsed,
                                                     LayerTensors const& layer) const {
  auto const* const rule = find_rule(name, parsed, layer);
  if (rule != nullptr && rule->from_file) return rule;
  for (auto const& other : file.rules) {
    if (!other.rename.empty() && other.applies_to_model(sizes.model_type()) &&
        NamePattern(other.rename).matches(other.whole_name ? name : parsed.module))
      return other.fused ? other.fused.get() : &other;
  }
  return rule;
}

std::vector<std::string> RuleSet::State::uncovered() const {
  std::set<std::string> patterns;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    for (auto const& tensor : set.sources[i]->tensors()) {
      auto const parsed = parse_tensor_name(tensor.name);
      if (parsed.role == TensorRole::cache_scale) continue;
      if (find_rule(tensor.name, parsed, layers_of(i).at(parsed.module)) == nullptr)
        patterns.insert(generalized(parsed.module));
    }
  }
  return {patterns.begin(), patterns.end()};
}

MergeRule RuleSet::State::merge_cache_scale(std::string_view name, RankTensors const& asked) const {
  auto const per_head = asked.ranks > 1 ? joined_heads(name, asked.tensors, sizes) : std::nullopt;
  if (!per_head) return reduced(asked.tensors, ReduceOp::max, "a scale of the cache: the largest covers all ranks");
  auto rule = joined(*per_head, name, asked.tensors);
  std::get<Concatenate>(rule.kind).unproven = !sizes[SizeName::kv_heads];
  rule.reason = "a scale of the cache per head: " + rule.reason;
  return rule;
}

MergeRule RuleSet::State::decide(LayerRule const* rule, std::string_view name, RankTensors const& asked) const {
  auto const parsed = parse_tensor_name(name);
  if (are_different_experts(name, asked)) return expert_groups();
  if (rule == nullptr) {
    if (parsed.role == TensorRole::cache_scale) return merge_cache_scale(name, asked);
    if (asked.ranks == 1) return {.kind = KeepReplica{}, .reason = "there is one tensor-parallel rank"};
    refuse_uncovered(name, asked.tensors, uncovered());
  }
  MergeRule merged;
  if (is_dropped(*rule, parsed, asked)) {
    merged = {.kind = LeaveOut{},
              .reason = rule->is<Dropped>() ? "not part of the result" : "a copy of the embedding under another name"};
  } else {
    merged = rule->whole_name ? by_whole_name(*rule, asked.tensors) : by_layer(*rule, parsed, asked);
  }
  auto const which = " (" + rule->origin() + ")";
  for (auto& output : merged.outputs()) output.reason += which;
  if (!rule->rename.empty()) {
    auto const global = grid.global_name(name, set.places.at(asked.sources.front()));
    merged.output_name = new_name(*rule, global, parse_tensor_name(global));
  }
  if (rule->fused && !merged.is<LeaveOut>())
    merged.fused = std::make_shared<FusedPlace const>(fused_place_of(*rule, parsed, asked));
  return merged;
}

LayerOrder RuleSet::State::order_of(LayerRule const& rule, LayerTensors const& layer, Layers const& layers_of) const {
  auto order = rule.order();
  auto const* weight = layer[TensorRole::weight];
  auto const hidden = sizes[SizeName::hidden];
  bool const column = rule.is<ColumnLayer>();
  if (!order.stacked || rule.from_file || !hidden || weight == nullptr || weight->shape.size() != 3) return order;
  // Packed weights are shorter than their number of values. Only the side that is never sharded is known by its length.
  bool const packed = weight->dtype == Dtype::u8 || weight->dtype == Dtype::i8 || weight->dtype == Dtype::i32 ||
                      weight->dtype == Dtype::f4;
  bool const first = weight->shape[1] == *hidden;
  bool const last = weight->shape[2] == *hidden;
  if (!packed && first != last) order.transposed = column ? first : last;
  if (!packed && first && last) order.transposed = sibling_transposed(*weight, layers_of).value_or(order.transposed);
  return order;
}

/// If both sides of a stack have the hidden width, the other stack of the same experts gives the order of dimensions:
/// up projections are [in, out] if the hidden width is first, down projections if it is last.
std::optional<bool> RuleSet::State::sibling_transposed(SourceTensor const& weight, Layers const& layers_of) const {
  auto const hidden = sizes[SizeName::hidden];
  auto const before = std::string_view(weight.name).substr(0, weight.name.rfind('.') + 1);
  for (auto const& [module, layer] : layers_of) {
    auto const* const other = layer[TensorRole::weight];
    if (!module.starts_with(before) || other == nullptr || other == &weight || other->shape.size() != 3) continue;
    auto const* const rule = find_rule(other->name, parse_tensor_name(other->name), layer);
    if (rule == nullptr || !rule->order().stacked || (other->shape[1] == *hidden) == (other->shape[2] == *hidden))
      continue;
    return rule->is<ColumnLayer>() ? other->shape[1] == *hidden : other->shape[2] == *hidden;
  }
  return std::nullopt;
}

bool RuleSet::State::is_dropped(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const {
  if (auto const* const dropped = std::get_if<Dropped>(&rule.kind))
    return dropped->tied_to.empty() || has_tensor(dropped->tied_to);
  // The bias of a head is not tied.
  return rule.is<VocabularyLayer>() && sizes.tied() && has_embedding_ && is_head(parsed.module) &&
         parsed.role != TensorRole::bias && !differs_from_embedding(parsed, asked);
}

std::string RuleSet::State::name_of_lost_embedding(TensorName const& parsed) const {
  bool const lost = set.saved_by_vllm && sizes.tied() && !has_embedding_;
  if (!lost || parsed.role != TensorRole::weight || !is_head(parsed.module)) return {};
  for (auto const& module : names.outside_of_layers()) {
    if (is_embedding(module)) return module + std::string(parsed.suffix);
  }
  return {};
}

bool RuleSet::State::differs_from_embedding(TensorName const& parsed, RankTensors const& asked) const {
  if (parsed.role != TensorRole::weight) return false;
  bool differs = false;
  for (std::size_t i = 0; i < asked.sources.size(); ++i) {
    auto const head = placed(*set.sources[asked.sources[i]], *asked.tensors[i]);
    for (std::size_t s = 0; s < set.sources.size(); ++s) {
      if (set.places[s].tp != set.places[asked.sources[i]].tp) continue;
      for (auto const& [module, layer] : layers_of(s)) {
        auto const* const weight = is_embedding(module) ? layer[TensorRole::weight] : nullptr;
        if (weight == nullptr || weight->dtype != asked.tensors[i]->dtype ||
            !(weight->shape == asked.tensors[i]->shape))
          continue;
        if (samples_match(head, placed(*set.sources[s], *weight))) return false;
        differs = true;
      }
    }
  }
  return differs;
}

bool RuleSet::State::has_tensor(std::string const& name) const {
  return std::any_of(set.sources.begin(), set.sources.end(), [&](auto const& source) {
    auto const tensors = source->tensors();
    return std::any_of(tensors.begin(), tensors.end(), [&](SourceTensor const& tensor) { return tensor.name == name; });
  });
}

void RuleSet::State::refuse_missing(std::string_view name, RankTensors const& having, std::vector<int> missing) const {
  auto const first = missing.front();
  auto const count = missing.size();
  throw FormatError({.operation = "merge rules",
                     .message = "missing on " + std::to_string(count) + " of " + std::to_string(having.ranks) +
                                " tensor-parallel ranks, first on rank " + std::to_string(first),
                     .got = file_of(having.sources.front(), first) + " lacks it, " +
                            set.sources[having.sources.front()]->name() + " has it",
                     .resource = std::string(name),
                     .hint = "check that all files exist, are complete and belong to one model",
                     .failed_ranks = std::move(missing),
                     .section = to_string(ErrorSection::coverage)});
}

bool RuleSet::State::require_weight(TensorName const& parsed, RankTensors const& asked) const {
  RankTensors having{.ranks = asked.ranks};
  std::vector<int> missing;
  for (auto const source : asked.sources) {
    auto const* const weight = layers_of(source).find(parsed.module)->second[TensorRole::weight];
    if (weight == nullptr) {
      missing.push_back(set.places[source].tp);
    } else {
      having.tensors.push_back(weight);
      having.sources.push_back(source);
    }
  }
  if (!having.tensors.empty() && !missing.empty())
    refuse_missing(having.tensors.front()->name, having, std::move(missing));
  return missing.empty();
}

MergeRule RuleSet::State::by_layer(LayerRule const& rule, TensorName const& parsed, RankTensors const& asked) const {
  refuse_order_of_vllm(rule, asked.tensors.front()->name, parsed);
  LayerOnRanks layer{
      .module = parsed.module, .role = parsed.role, .tensors = asked.tensors, .hints = hints_of(parsed.module)};
  if (auto const* const value = std::get_if<ReducedValue>(&rule.kind))
    return reduced(asked.tensors, value->op, "made one value");
  auto const* const tower = towers.sizes_of(parsed.module);
  // Without another rule, a tensor whose tied tensor is missing is on every rank.
  if (rule.is<Replicated>() || rule.is<Dropped>() || (tower != nullptr && !Towers::can_apply(rule, *tower))) {
    return compose_rule(layer, {.shard_axis = ShardAxis::replicate, .why = "every rank has all of it"});
  }
  bool const stacked = rule.order().stacked;
  if (stacked && has_expert_groups(asked)) return expert_groups();
  bool const has_weight = require_weight(parsed, asked);
  auto const parts = parts_of(rule, parsed, asked.sources.front());
  LayerValues values;
  std::vector<std::int64_t> outputs;
  std::vector<std::int64_t> inputs;
  for (auto const source : asked.sources) {
    values.sources.push_back(set.sources[source]);
    auto const found = layers_of(source).find(parsed.module);
    values.layers.push_back(found->second);
    layer.formats.push_back(LayerFormat::recognize(parsed.module, found->second, layer.hints,
                                                   order_of(rule, found->second, layers_of(source))));
    outputs.push_back(layer.formats.back().outputs());
    inputs.push_back(layer.formats.back().inputs());
  }
  ShardingQuery const query{.module = parsed.module, .outputs = outputs, .inputs = inputs, .has_weight = has_weight};
  auto const& known = tower != nullptr ? *tower : sizes_of(parsed.module, asked.sources.front());
  auto const sharding = !rule.from_file && holds_copies(rule, query, values, tower)
                            ? LayerSharding{.shard_axis = ShardAxis::replicate, .why = "every rank has the same"}
                            : decide_sharding(query, as_laid_out(rule, parsed.module), known);
  auto const joined = splits_blocks(layer, sharding) ? merge_blocks(layer, values, sharding, policy) : std::nullopt;
  auto merged = joined ? *joined : compose_rule(layer, sharding);
  bool const made_anew = !parts.modules.empty() && parsed.role == TensorRole::weight_shape;
  if (!joined && !made_anew) resolve_values(merged, layer, values, sharding, policy);
  if (!parts.modules.empty()) return unfuse(merged, layer, sharding, parts, parsed.suffix);
  if (auto* const concat = std::get_if<Concatenate>(&merged.kind)) concat->assumed_layout = is_assumed(rule, sharding);
  if (stacked && set.ep > 1) concatenate_stacks(merged, parsed, asked);
  bool const is_group = stacked && set.moe_ep > 1 && asked.ranks * as_size(set.moe_ep) == as_size(set.tp);
  if (is_group) {
    merged.ep_axis = has_expert_dimension(parsed, asked) ? 0 : -1;
    if (merged.combines_values() && asked.ranks == 1) merged.kind = KeepReplica{};
    merged.reason += "; " + std::to_string(set.moe_ep) + " groups of experts follow each other";
  }
  if (stacked && set.ep == 1 && !is_group && !rule.from_file) require_all_experts(parsed, *asked.tensors.front());
  return merged;
}

LayerRule RuleSet::State::as_laid_out(LayerRule const& rule, std::string_view module) const {
  auto own = rule;
  auto* const column = std::get_if<ColumnLayer>(&own.kind);
  if (column == nullptr || rule.from_file || column->order.stacked) return own;
  if (set.fused == FusedLayout::plain) column->layout = PartLayout::plain;
  // vLLM shards this layer of InternLM2 without regard to its groups.
  if (set.saved_by_vllm && module.ends_with(".wqkv")) column->layout = PartLayout::per_rank;
  return own;
}

/// Only for these layers are programs known that shard them in another way.
bool RuleSet::State::is_assumed(LayerRule const& rule, LayerSharding const& sharding) const {
  auto const& type = sizes.model_type();
  bool const sharded_plainly_by_others =
      type.starts_with("glm") || type.starts_with("phi3") || type.starts_with("phi4") || type.starts_with("qwen3_5");
  return sharded_plainly_by_others && set.fused == FusedLayout::automatic && !rule.from_file && !rule.order().stacked &&
         sharding.shard_axis == ShardAxis::column && sharding.parts.size() > 1;
}

/// Decides by values if config and shapes may mislead. Towers use names of the language model with other meanings, an
/// embedding may have more rows than there are tokens, and layers that a split leaves whole may have any size.
bool RuleSet::State::holds_copies(LayerRule const& rule, ShardingQuery const& query, LayerValues const& values,
                                  ModelSizes const* tower) const {
  auto const tokens = sizes[SizeName::vocabulary];
  bool const odd_rows = rule.is<VocabularyLayer>() && tokens && query.outputs.front() != *tokens;
  auto const* const first = values.layers.front()[TensorRole::weight];
  if ((tower == nullptr && !odd_rows && !rule.left_whole()) || query.outputs.size() < 2 || first == nullptr)
    return false;
  if (!has_distinctive_values(placed(*values.sources.front(), *first))) return false;
  for (std::size_t rank = 1; rank < values.layers.size(); ++rank) {
    auto const* const other = values.layers[rank][TensorRole::weight];
    if (other == nullptr ||
        !samples_match(placed(*values.sources.front(), *first), placed(*values.sources[rank], *other)))
      return false;
  }
  return true;
}

}  // namespace crossrank::checkpoint
