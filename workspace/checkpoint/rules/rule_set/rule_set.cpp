#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/discovery/megatron/training_arguments.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/rules/rule_proposal.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"
#include "workspace/checkpoint/rules/scales/cache_scale.hpp"

namespace crossrank::checkpoint {
namespace {

/// Inverts a rule for one sharded tensor.
SplitRule split_sharded(ShardedTensor const& rule, std::string reason, SourceTensor const& tensor, int ranks) {
  auto const axis = as_size(rule.axis);
  auto const pieces = ranks / rule.replicas;
  auto const parts = rule.parts.empty() ? std::vector<std::int64_t>{1} : rule.parts;
  auto const sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  auto const length = axis < tensor.shape.size() ? tensor.shape[axis] : 0;
  if (pieces < 1 || ranks % rule.replicas != 0 || length % (sum * pieces) != 0 || length == 0) {
    throw UsageError(
        {.operation = "split rules",
         .message = "dimension " + std::to_string(axis) + " does not divide over " + std::to_string(ranks) + " ranks",
         .got = to_string(tensor.shape),
         .resource = tensor.name,
         .hint = "choose a number of ranks that divides it"});
  }
  SplitRule split{.axis = rule.axis, .reason = std::move(reason)};
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t begin = 0;
    std::int64_t to = 0;
    split.ranks.emplace_back();
    for (auto const part : parts) {
      auto const width = length / sum * part;
      auto const piece = width / pieces;
      split.ranks.back().push_back({begin + rank / rule.replicas * piece, to, piece});
      begin += width;
      to += piece;
    }
  }
  split.subtract_per_group = rule.add_per_rank;
  return split;
}

/// Inverts a rule of the file for one tensor.
SplitRule split_by_name(LayerRule const& rule, SourceTensor const& tensor, int ranks) {
  return std::visit(
      Overloads{[](Dropped const& dropped) {
                  return SplitRule{.drop = dropped.tied_to.empty(), .reason = "not part of the result"};
                },
                [&](ShardedTensor const& sharded) { return split_sharded(sharded, rule.origin(), tensor, ranks); },
                [](auto const&) { return SplitRule{.reason = "every rank has all of it"}; }},
      rule.kind);
}

/// Extends a split over the ranks of one group of experts to all ranks.
SplitRule split_groups(SplitRule inner, SourceTensor const& tensor, std::int64_t experts, int ranks, int groups) {
  if (ranks % groups != 0 || experts % groups != 0 || inner.subtract_per_group != 0) {
    throw UsageError({.operation = "split rules",
                      .message = "the experts do not divide into " + std::to_string(groups) + " groups on " +
                                 std::to_string(ranks) + " ranks",
                      .got = std::to_string(experts) + " experts",
                      .resource = tensor.name,
                      .hint = "choose `moe_ep` of the result so that it divides the ranks and the experts"});
  }
  SplitRule rule = inner;
  rule.ranks.clear();
  if (tensor.shape.empty() || tensor.shape[0] != experts) {
    // All experts share it, so each group has it.
    for (int rank = 0; inner.axis >= 0 && rank < ranks; ++rank)
      rule.ranks.push_back(inner.ranks.at(as_size(rank / groups)));
    return rule;
  }
  auto const own = experts / groups;
  if (inner.axis < 0) rule.axis = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const first = rank % groups * own;
    if (inner.axis < 0) {
      rule.ranks.push_back({SplitRange{first, 0, own}});
    } else {
      rule.ranks.push_back(inner.ranks.at(as_size(rank / groups)));
      rule.experts.push_back({first, own});
    }
  }
  rule.reason += "; " + std::to_string(groups) + " groups of experts";
  return rule;
}

/// Completes the split of group ids. Ids that follow the inputs start at 0 in each shard. With other ids the inputs of
/// a shard need scales of other shards. Ids of -1 were never set.
void resolve_split_group_ids(SplitRule& rule, StoredTensor const& stored, LayerFormat const& format) {
  auto const ids = read_integers(stored);
  auto const inputs = std::max<std::int64_t>(format.inputs(), 1);
  auto const group = format.group() > 0 ? format.group() : inputs;
  bool follow = true;
  for (std::size_t i = 0; i < ids.size(); ++i)
    follow = follow && ids[i] == static_cast<std::int64_t>(i) % inputs / group;
  if (follow) return;
  rule.subtract_per_group = 0;
  if (std::all_of(ids.begin(), ids.end(), [](auto id) { return id == -1; })) return;
  throw FormatError({.operation = "split rules",
                     .message = "group ids that do not follow the inputs cannot be split along them",
                     .expected = "ids that grow by one per group",
                     .got = "groups in the order of activations",
                     .resource = stored.source->tensors()[stored.tensor].name,
                     .hint = "quantize without activation order",
                     .section = to_string(ErrorSection::group_ids)});
}

}  // namespace

RuleSet RuleSet::make(ShardSet const& set, std::optional<std::filesystem::path> const& rule_file, ScalePolicy policy) {
  return make_with(set, rule_file ? RuleFile::read(*rule_file) : RuleFile(), policy);
}

RuleSet RuleSet::make_with(ShardSet const& set, RuleFile rule_file, ScalePolicy policy) {
  return RuleSet(std::make_shared<State const>(set, std::move(rule_file), policy));
}

bool RuleSet::changes_single_source(ShardSet const& set) {
  auto const& source = *set.sources.front();
  if (has_padded_vocabulary(source.attributes()) || set.saved_by_vllm) return true;
  ModelNames const names(set.config);
  return std::any_of(source.tensors().begin(), source.tensors().end(), [&](SourceTensor const& tensor) {
    return !names.parts_of(parse_tensor_name(tensor.name).module).empty() || !names.stack_name(tensor.name).empty();
  });
}

MergeRule RuleSet::rule_for(std::string_view name, std::span<SourceTensor const* const> shards,
                            std::span<TensorAt const> places) const {
  RankTensors asked{.ranks = shards.size()};
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    if (shards[rank] == nullptr) {
      missing.push_back(static_cast<int>(rank));
    } else {
      asked.tensors.push_back(shards[rank]);
      asked.sources.push_back(places.empty() ? state_->source_of(shards[rank]) : places[rank].source);
    }
  }
  if (asked.tensors.empty()) {
    throw UsageError(
        {.operation = "RuleSet.rule_for", .message = "no rank has this tensor", .resource = std::string(name)});
  }
  if (!missing.empty() && !state_->is_on_some_ranks(name, asked)) {
    state_->refuse_missing(name, asked, missing);
  }
  auto const parsed = parse_tensor_name(name);
  auto const* const matching =
      state_->find_rule(name, parsed, state_->layers_of(asked.sources.front()).at(parsed.module));
  auto rule = state_->decide(matching, name, asked);
  if (matching != nullptr && (!matching->rename.empty() || !matching->part_names.empty())) return rule;
  if (rule.output_name.empty()) rule.output_name = state_->own_stack_name(name, parsed, asked.sources.front());
  if (rule.output_name.empty()) rule.output_name = state_->name_of_lost_embedding(parsed);
  auto const place = state_->set.places.at(asked.sources.front());
  auto const rename = [&](MergeRule& one) {
    auto global = state_->grid.global_name(one.output_name.empty() ? name : std::string_view(one.output_name), place);
    if (global != name) one.output_name = std::move(global);
  };
  for (auto& output : rule.outputs()) rename(output);
  return rule;
}

MergeRule RuleSet::rule_for_single_source(SourceTensor const& tensor) const {
  auto const parsed = parse_tensor_name(tensor.name);
  auto const source = state_->source_of(&tensor);
  auto const* const rule = state_->find_rule(tensor.name, parsed, state_->layers_of(source).at(parsed.module));
  MergeRule alone{.reason = single_source};
  if (rule == nullptr) return alone;
  state_->refuse_order_of_vllm(*rule, tensor.name, parsed);
  bool const vocabulary = rule->is<VocabularyLayer>();
  auto const* const sharded = std::get_if<ShardedTensor>(&rule->kind);
  bool const changed =
      rule->from_file && (vocabulary || rule->is<Dropped>() || (sharded != nullptr && sharded->true_size >= 0));
  bool const padded =
      vocabulary && (state_->set.saved_by_vllm || has_padded_vocabulary(state_->set.sources[source]->attributes()));
  if (changed || padded || !state_->parts_of(*rule, parsed, source).modules.empty()) {
    SourceTensor const* const shard = &tensor;
    return rule_for(tensor.name, {&shard, 1});
  }
  alone.output_name = state_->own_stack_name(tensor.name, parsed, source);
  if (alone.output_name.empty()) alone.output_name = state_->name_of_lost_embedding(parsed);
  // The tensor is whole, whatever the shard axis of the rule.
  if (!rule->rename.empty()) {
    alone.output_name = new_name(*rule, tensor.name, parsed);
    alone.reason += " under the name that the rule file gives";
  }
  if (rule->fused) {
    RankTensors const asked{.tensors = {&tensor}, .sources = {source}, .ranks = 1};
    alone.fused = std::make_shared<FusedPlace const>(state_->fused_place_of(*rule, parsed, asked));
  }
  return alone;
}

std::pair<Fit, std::optional<FormatError>> RuleSet::fit_of(SourceTensor const& tensor) const {
  auto const parsed = parse_tensor_name(tensor.name);
  auto const& layer = state_->layers_of(state_->source_of(&tensor)).at(parsed.module);
  auto const* const rule = state_->find_rule(tensor.name, parsed, layer);
  SourceTensor const* const shard = &tensor;
  try {
    auto const merged = rule_for(tensor.name, {&shard, 1});
    bool const sharding = rule != nullptr && !rule->from_file && (rule->is<ColumnLayer>() || rule->is<RowLayer>()) &&
                          parsed.role == TensorRole::weight && state_->towers.sizes_of(parsed.module) == nullptr;
    return {sharding && merged.is<KeepReplica>() ? Fit::whole : Fit::unknown, std::nullopt};
  } catch (FormatError const& error) {
    // A tensor without a rule stays as it is.
    if (section_of(error) == ErrorSection::missing_ranks) return {Fit::piece, error};
    if (section_of(error) == ErrorSection::lengths) return {Fit::neither, error};
    return {Fit::unknown, std::nullopt};
  }
}

std::optional<SplitRule> RuleSet::split_experts(std::string_view name, SourceTensor const& tensor, int ranks,
                                                int moe_ep) const {
  auto const parsed = parse_tensor_name(name);
  auto const& layer = state_->layers_of(state_->source_of(&tensor)).at(parsed.module);
  auto const* const rule = state_->find_rule_of_result(name, parsed, layer);
  auto const* const weight = layer[TensorRole::weight];
  if (rule != nullptr && rule->order().stacked && weight != nullptr)
    return split_groups(split_for(name, tensor, ranks / moe_ep), tensor, weight->shape[0], ranks, moe_ep);
  if (!find_expert(name)) return std::nullopt;
  throw UsageError({.operation = "split rules",
                    .message = "`moe_ep` of the result needs stacked experts",
                    .got = "an expert in a separate tensor",
                    .resource = tensor.name,
                    .hint = "leave `moe_ep` of the result out"});
}

SplitRule RuleSet::split_for(std::string_view name, SourceTensor const& tensor, int ranks, int moe_ep) const {
  if (ranks < 1) {
    throw UsageError({.operation = "RuleSet.split_for",
                      .message = "the number of ranks must be at least 1",
                      .got = std::to_string(ranks)});
  }
  if (moe_ep > 1) {
    if (auto experts = split_experts(name, tensor, ranks, moe_ep)) return std::move(*experts);
  }
  auto const parsed = parse_tensor_name(name);
  auto const& layer = state_->layers_of(state_->source_of(&tensor)).at(parsed.module);
  if (ranks == 1) return {.reason = "there is one tensor-parallel rank"};
  auto const* rule = state_->find_rule_of_result(name, parsed, layer);
  if (rule == nullptr) {
    if (parsed.role == TensorRole::cache_scale) {
      auto const per_head = split_heads(tensor, ranks);
      return per_head ? split_sharded(*per_head, "a scale of the cache per head", tensor, ranks)
                      : SplitRule{.reason = "a scale of the cache"};
    }
    SourceTensor const* const whole = &tensor;
    refuse_uncovered(name, std::span(&whole, 1), state_->uncovered());
  }
  if (rule->whole_name) return split_by_name(*rule, tensor, ranks);
  auto const hints = state_->hints_of(parsed.module);
  if (!rule->from_file && state_->towers.sizes_of(parsed.module) != nullptr)
    return {.reason = "not part of the language model: whole on each rank"};
  auto const source_number = state_->source_of(&tensor);
  auto const& layer_sizes = state_->sizes_of(parsed.module, source_number);
  auto const which = " (" + rule->origin() + ")";
  // A layer that every rank has whole may have any format.
  if (rule->is<Replicated>() || rule->left_whole())
    return {.reason = split_layer(parsed.module, 0, 0, *rule, layer_sizes, ranks).why + which};
  if (auto const* const weight = layer[TensorRole::weight]) refuse_flat_weight(*weight, hints);
  auto const format = LayerFormat::recognize(parsed.module, layer, hints,
                                             state_->order_of(*rule, layer, state_->layers_of(source_number)));
  auto const split = split_layer(parsed.module, format.outputs(), format.inputs(), *rule, layer_sizes, ranks);
  auto result = split_tensor(tensor, parsed.role, format, split);
  if (parsed.role == TensorRole::group_ids && result.axis >= 0) {
    auto const& source = state_->set.sources[source_number];
    resolve_split_group_ids(result, {source, as_size(&tensor - source->tensors().data())}, format);
  }
  result.reason += which;
  return result;
}

Json RuleSet::to_json() const {
  Json json = Json::object();
  json["rules"] = Json::array();
  for (auto const& rule : state_->rules) {
    json["rules"].push_back(
        Json{{"pattern", rule.pattern.text()}, {"sharding", std::string(sharding_name(rule.kind))}});
  }
  json["rule_file"] = state_->file.text;
  json["config"] = State::full_config(state_->set, state_->file);
  json["quantization"] = state_->set.quantization;
  json["grid"] = Json{{"tp", state_->set.tp}, {"pp", state_->set.pp}, {"ep", state_->set.ep}};
  json["policy"] = static_cast<int>(state_->policy);
  return json;
}

}  // namespace crossrank::checkpoint
