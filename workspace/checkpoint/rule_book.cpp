#include "workspace/checkpoint/rule_book.hpp"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/builtin_rules.hpp"
#include "workspace/checkpoint/number_format.hpp"
#include "workspace/checkpoint/rule_compose.hpp"
#include "workspace/checkpoint/rule_file.hpp"
#include "workspace/checkpoint/rule_grid.hpp"
#include "workspace/checkpoint/rule_proposal.hpp"

namespace crossrank::checkpoint {
namespace {

using Tensors = std::vector<SourceTensor const*>;

bool ends_in(std::string_view name, std::initializer_list<std::string_view> elements) {
  auto const last = split_name(name).back();
  return std::find(elements.begin(), elements.end(), last) != elements.end();
}

bool is_embedding(std::string_view module) {
  return ends_in(module, {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings", "vocab_embedding"});
}

bool is_head(std::string_view module) { return ends_in(module, {"lm_head", "embed_out", "output_layer"}); }

/// Where the descriptions of one source stand in memory.
struct Extent {
  SourceTensor const* begin = nullptr;
  SourceTensor const* end = nullptr;
  std::size_t source = 0;
};

}  // namespace

struct RuleBook::State {
  ShardSet set{};
  ModelSizes sizes{};
  QuantizationHints hints{};
  RuleGrid grid{};
  RuleFile file{};
  std::vector<LayerRule> rules{};                                            ///< the file's first
  std::vector<Extent> extents{};                                             ///< in order of memory
  std::vector<std::unordered_map<std::string_view, LayerTensors>> layers{};  ///< per source
  bool has_embedding = false;

  explicit State(ShardSet const& shards, RuleFile rule_file)
      : set(shards),
        sizes(file_config(shards, rule_file)),
        hints(shards.config, shards.quantization),
        grid(shards, sizes),
        file(std::move(rule_file)) {
    rules = file.rules;
    for (auto& rule : builtin_rules()) rules.push_back(std::move(rule));
    index();
  }

  static Json file_config(ShardSet const& shards, RuleFile const& rule_file) {
    Json config = shards.config.is_object() ? shards.config : Json::object();
    for (auto const& [key, value] : rule_file.sizes.items()) config[key] = value;
    return config;
  }

  void index() {
    layers.resize(set.sources.size());
    for (std::size_t i = 0; i < set.sources.size(); ++i) {
      auto const tensors = set.sources[i]->tensors();
      if (!tensors.empty()) extents.push_back({tensors.data(), tensors.data() + tensors.size(), i});
      for (auto const& tensor : tensors) {
        auto const parsed = parse_tensor_name(tensor.name);
        layers[i][parsed.module].set(parsed.role, tensor);
        has_embedding = has_embedding || is_embedding(parsed.module);
      }
    }
    std::sort(extents.begin(), extents.end(),
              [](Extent const& a, Extent const& b) { return std::less<>{}(a.begin, b.begin); });
  }

  std::size_t source_of(SourceTensor const* tensor) const {
    auto after = std::upper_bound(
        extents.begin(), extents.end(), tensor,
        [](SourceTensor const* wanted, Extent const& extent) { return std::less<>{}(wanted, extent.begin); });
    if (after != extents.begin() && std::less<>{}(tensor, std::prev(after)->end)) return std::prev(after)->source;
    throw UsageError({.operation = "RuleBook.rule_for",
                      .message = "a tensor that is not of the set that the book was made from",
                      .resource = tensor->name});
  }

  LayerRule const* find_rule(std::string_view name, TensorName const& parsed, LayerTensors const& layer) const {
    auto const* weight = layer[TensorRole::weight];
    for (auto const& rule : rules) {
      if (!rule.models.empty() &&
          std::find(rule.models.begin(), rule.models.end(), sizes.model_type()) == rule.models.end())
        continue;
      if (rule.stacked && !rule.from_file && (weight == nullptr || weight->shape.size() < 3)) continue;
      if (rule.pattern.matches(rule.whole_name ? name : parsed.module)) return &rule;
      // Buffers such as "...attn.masked_bias" or a parameter that is called like a role.
      if (!rule.whole_name && rule.cut == Cut::replicate && rule.pattern.matches(name)) return &rule;
    }
    return nullptr;
  }

  MergeRule decide(std::string_view name, Tensors const& tensors, std::vector<std::size_t> const& sources,
                   std::size_t ranks) const {
    auto const parsed = parse_tensor_name(name);
    auto const& layer = layers[sources.front()].at(parsed.module);
    auto const* rule = find_rule(name, parsed, layer);
    if (rule == nullptr) {
      if (parsed.role == TensorRole::cache_scale) return cache_scale(tensors);
      if (ranks == 1) return {.kind = MergeKind::replicate, .reason = "there is one tensor-parallel rank"};
      refuse_uncovered(name, tensors);
    }
    auto merged = rule->whole_name ? by_whole_name(*rule, tensors) : by_layer(*rule, parsed, tensors, sources);
    merged.reason +=
        " (" + std::string(rule->from_file ? "rule file: " : "built-in rule ") + rule->pattern.text() + ")";
    if (merged.output_name.empty() && !rule->rename.empty()) merged.output_name = renamed(*rule, name, parsed);
    return merged;
  }

  static std::string renamed(LayerRule const& rule, std::string_view name, TensorName const& parsed) {
    auto const target = fill_numbers(rule.rename, rule.whole_name ? name : parsed.module);
    return rule.whole_name ? target : target + std::string(parsed.suffix);
  }

  static MergeRule cache_scale(Tensors const& tensors) {
    check_alike(tensors, -1);
    return {
        .kind = MergeKind::reduce, .op = ReduceOp::max, .reason = "a scale of the cache: the largest covers all ranks"};
  }

  bool is_dropped(LayerRule const& rule, TensorName const& parsed) const {
    if (rule.cut == Cut::drop) return rule.tied_to.empty() || has_tensor(rule.tied_to);
    return rule.cut == Cut::vocabulary && sizes.tied() && has_embedding && is_head(parsed.module);
  }

  bool has_tensor(std::string const& name) const {
    return std::any_of(set.sources.begin(), set.sources.end(), [&](auto const& source) {
      auto const tensors = source->tensors();
      return std::any_of(tensors.begin(), tensors.end(),
                         [&](SourceTensor const& tensor) { return tensor.name == name; });
    });
  }

  static MergeRule by_whole_name(LayerRule const& rule, Tensors const& tensors) {
    if (rule.cut == Cut::drop) return {.kind = MergeKind::replicate, .drop = true, .reason = "not part of the result"};
    if (rule.axis) {
      auto const axis = *rule.axis;
      if (axis >= static_cast<int>(tensors.front()->shape.size())) {
        throw FormatError({.operation = "merge rules",
                           .message = "the rule names dimension " + std::to_string(axis),
                           .got = to_string(tensors.front()->shape),
                           .resource = tensors.front()->name,
                           .remedy = "correct the rule " + rule.pattern.text(),
                           .section = "shape"});
      }
      check_alike(tensors, axis);
      MergeRule merged{.kind = MergeKind::concat,
                       .axis = axis,
                       .replicas = std::max(rule.replicas, 1),
                       .true_size = rule.true_size,
                       .add_per_rank = rule.add_per_rank,
                       .reason = "joined along dimension " + std::to_string(axis)};
      for (auto const& part : rule.parts) merged.parts.push_back(std::get<std::int64_t>(part));
      return merged;
    }
    check_alike(tensors, -1);
    if (rule.cut == Cut::reduce) return {.kind = MergeKind::reduce, .op = rule.op, .reason = "made one value"};
    return {.kind = MergeKind::replicate, .reason = "every rank has all of it"};
  }

  MergeRule by_layer(LayerRule const& rule, TensorName const& parsed, Tensors const& tensors,
                     std::vector<std::size_t> const& sources) const {
    if (is_dropped(rule, parsed)) {
      return {.kind = MergeKind::replicate, .drop = true, .reason = "the same values as the embedding, by name"};
    }
    LayerOnRanks layer{
        .module = parsed.module, .role = parsed.role, .tensors = tensors, .hints = hints.of(parsed.module)};
    if (rule.cut == Cut::replicate || rule.cut == Cut::drop) {
      return compose_rule(layer, {.cut = Cut::replicate, .why = "every rank has all of it"});
    }
    if (rule.cut == Cut::reduce) {
      check_alike(tensors, -1);
      return {.kind = MergeKind::reduce, .op = rule.op, .reason = "made one value"};
    }
    std::vector<std::int64_t> outputs;
    std::vector<std::int64_t> inputs;
    for (auto const source : sources) {
      auto const found = layers[source].find(parsed.module);
      layer.formats.push_back(LayerFormat::recognise(parsed.module, found->second, layer.hints,
                                                     {.stacked = rule.stacked, .transposed = rule.transposed}));
      outputs.push_back(layer.formats.back().outputs());
      inputs.push_back(layer.formats.back().inputs());
    }
    auto const cut = decide_cut({.module = parsed.module, .outputs = outputs, .inputs = inputs}, rule, sizes);
    return compose_rule(layer, cut);
  }
};

RuleBook RuleBook::make(ShardSet const& set, std::optional<std::filesystem::path> const& rule_file) {
  return RuleBook(std::make_shared<State const>(set, rule_file ? RuleFile::read(*rule_file) : RuleFile()));
}

MergeRule RuleBook::rule_for(std::string_view name, std::span<SourceTensor const* const> shards) const {
  Tensors present;
  std::vector<std::size_t> sources;
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    if (shards[rank] == nullptr) {
      missing.push_back(static_cast<int>(rank));
    } else {
      present.push_back(shards[rank]);
      sources.push_back(state_->source_of(shards[rank]));
    }
  }
  if (present.empty()) {
    throw UsageError(
        {.operation = "RuleBook.rule_for", .message = "no rank has this tensor", .resource = std::string(name)});
  }
  // Experts may live on one tensor-parallel rank each, whole.
  bool const lone_expert = present.size() == 1 && name.find("experts.") != std::string_view::npos;
  if (!missing.empty() && !lone_expert) {
    throw FormatError({.operation = "merge rules",
                       .message = "missing on " + std::to_string(missing.size()) + " of " +
                                  std::to_string(shards.size()) + " tensor-parallel ranks, first on rank " +
                                  std::to_string(missing.front()),
                       .resource = std::string(name),
                       .remedy = "check that all files are there and whole",
                       .culprits = missing,
                       .section = "coverage"});
  }
  auto rule = state_->decide(name, present, sources, shards.size());
  auto const place = state_->set.places.at(sources.front());
  auto const global =
      state_->grid.global_name(rule.output_name.empty() ? name : std::string_view(rule.output_name), place);
  if (global != name) rule.output_name = global;
  return rule;
}

Json RuleBook::to_json() const {
  Json json = Json::object();
  json["rules"] = Json::array();
  for (auto const& rule : state_->rules) {
    json["rules"].push_back(Json{{"pattern", rule.pattern.text()}, {"cut", std::string(to_string(rule.cut))}});
  }
  json["rule_file"] = state_->file.text;
  json["config"] = State::file_config(state_->set, state_->file);
  json["quantization"] = state_->set.quantization;
  json["grid"] = Json{{"tp", state_->set.tp}, {"pp", state_->set.pp}, {"ep", state_->set.ep}};
  return json;
}

}  // namespace crossrank::checkpoint
