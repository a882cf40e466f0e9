#include "workspace/checkpoint/rules/sharding_decision.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/list_text.hpp"
#include "workspace/checkpoint/source/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_proposal.hpp"

namespace crossrank::checkpoint {
namespace {

// If a layer has more pieces, something else is wrong with it.
constexpr std::int64_t most_ranks = 4096;
constexpr std::int64_t most_parts = 4096;

bool all_are(std::span<std::int64_t const> lengths, std::int64_t value) {
  return std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t length) { return length == value; });
}

bool all_equal(std::span<std::int64_t const> lengths) { return all_are(lengths, lengths.front()); }

std::int64_t total(std::span<std::int64_t const> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Divides the widths by their greatest common divisor.
std::vector<std::int64_t> relative(std::vector<std::int64_t> widths) {
  if (widths.size() < 2) return {};
  std::int64_t divisor = 0;
  for (auto const width : widths) divisor = std::gcd(divisor, width);
  for (auto& width : widths) width /= std::max<std::int64_t>(divisor, 1);
  return widths;
}

class ShardingDecision {
 public:
  ShardingDecision(ShardingQuery const& question, LayerRule const& rule, ModelSizes const& sizes)
      : question_(question), rule_(rule), sizes_(sizes), ranks_(static_cast<std::int64_t>(question.outputs.size())) {}

  LayerSharding decide() {
    switch (rule_.shard_axis) {
      case ShardAxis::column: return column();
      case ShardAxis::row: return row();
      case ShardAxis::vocabulary: return vocabulary();
      default: return {.shard_axis = ShardAxis::replicate, .why = "every rank has all of it"};
    }
  }

 private:
  [[noreturn]] void refuse(std::string const& message, std::string const& expected, std::string const& got) const {
    auto const module = std::string(question_.module);
    throw FormatError({.operation = "merge rules",
                       .message = message,
                       .expected = expected,
                       .got = got,
                       .resource = module,
                       .hint = propose_rules(module, {"column", "row", "replicate"}),
                       .section = lengths_section});
  }

  /// Throws if equal pieces make up only a part of the whole, because files are missing.
  void refuse_if_ranks_are_missing(std::span<std::int64_t const> lengths, std::int64_t whole) const {
    auto const piece = lengths.front();
    // Only a vocabulary is padded so that the last piece is as long as the others.
    bool const divides = piece > 0 && (whole % piece == 0 || rule_.shard_axis == ShardAxis::vocabulary);
    if (!divides || !all_equal(lengths)) return;
    auto const all = (whole + piece - 1) / piece;
    if (all <= ranks_ || all > most_ranks) return;
    std::vector<int> missing;
    for (auto rank = ranks_; rank < all; ++rank) missing.push_back(static_cast<int>(rank));
    throw FormatError(
        {.operation = "merge rules",
         .message = "each file has a piece of " + std::to_string(all) + ", and there are " + std::to_string(ranks_),
         .expected = std::to_string(whole) + " in all",
         .got = std::to_string(piece) + " on each of " + std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks"),
         .resource = std::string(question_.module),
         .hint = "copy the files of the missing ranks there",
         .failed_ranks = std::move(missing),
         .section = missing_ranks_section});
  }

  /// Returns the sizes of the rule's parts; no value for a size that the config lacks.
  std::vector<std::optional<std::int64_t>> parts() const {
    std::vector<std::optional<std::int64_t>> widths;
    for (auto const& part : rule_.parts) widths.push_back(resolve(part, sizes_));
    if (rule_.gate && sizes_.gated().value_or(false)) widths.push_back(widths.front());
    if (!rule_.repeat) return widths;
    auto const times = sizes_[*rule_.repeat];
    if (!times || *times > most_parts) return {std::nullopt};
    auto const once = widths;
    for (std::int64_t i = 1; i < *times; ++i) widths.insert(widths.end(), once.begin(), once.end());
    return widths;
  }

  bool gate_is_unknown() const { return rule_.gate && !sizes_.gated(); }

  LayerSharding column() {
    auto const widths = parts();
    bool const known =
        !widths.empty() && std::all_of(widths.begin(), widths.end(), [](auto w) { return w.has_value(); });
    if (!known || gate_is_unknown() || has_numbers()) return column_by_name();
    std::vector<std::int64_t> full;
    for (auto const width : widths) full.push_back(*width);
    auto const whole = total(full);
    auto const& out = question_.outputs;
    if (all_are(out, whole)) {
      return {.shard_axis = ShardAxis::replicate,
              .why = "each rank has all " + std::to_string(whole) + " outputs of the config"};
    }
    if (total(out) == whole) return column_of(full, out, whole);
    if (auto const shared = rule_.plain ? std::nullopt : with_shared_heads(full)) return *shared;
    refuse_if_ranks_are_missing(out, whole);
    refuse("the outputs of the shards do not add up to the config's",
           std::to_string(whole) + " in all, or " + std::to_string(whole) + " on each rank", list_text(out));
  }

  LayerSharding column_of(std::vector<std::int64_t> const& full, std::span<std::int64_t const> out,
                          std::int64_t whole) const {
    LayerSharding sharding{.shard_axis = ShardAxis::column,
                           .why = "the shards add up to the config's " + std::to_string(whole) + " outputs"};
    if (full.size() < 2 || rule_.grouped || rule_.plain) return sharding;
    sharding.parts = relative(full);
    auto const unit = total(sharding.parts);
    for (auto const length : out) {
      if (length % unit != 0) {
        refuse("the fused parts do not divide over the ranks", "multiples of " + std::to_string(unit) + " outputs",
               list_text(out));
      }
    }
    return sharding;
  }

  /// Handles fewer key/value heads than ranks: neighbouring ranks hold the same head.
  std::optional<LayerSharding> with_shared_heads(std::vector<std::int64_t> const& full) const {
    auto const heads = sizes_[SizeName::kv_heads];
    if (!heads || full.size() != rule_.parts.size() || !all_equal(question_.outputs)) return std::nullopt;
    for (auto const copies : {ranks_ / std::max<std::int64_t>(*heads, 1), ranks_}) {
      if (copies < 2 || ranks_ % copies != 0) continue;
      std::vector<std::int64_t> widths;
      std::vector<int> replicas;
      bool divides = true;
      for (std::size_t i = 0; i < full.size(); ++i) {
        bool const shared = is_of_kv_heads(rule_.parts[i]);
        auto const pieces = shared ? ranks_ / copies : ranks_;
        divides = divides && full[i] % pieces == 0;
        widths.push_back(full[i] / pieces);
        replicas.push_back(shared ? static_cast<int>(copies) : 1);
      }
      if (!divides || total(widths) != question_.outputs.front()) continue;
      if (std::all_of(replicas.begin(), replicas.end(), [](int r) { return r == 1; })) continue;
      LayerSharding sharding{.shard_axis = ShardAxis::column,
                             .parts = relative(widths),
                             .why = std::to_string(*heads) + " key/value heads on " + std::to_string(ranks_) +
                                    " ranks: each is on " + std::to_string(copies) + " neighbours"};
      if (full.size() == 1) {
        sharding.replicas = replicas.front();
      } else {
        sharding.part_replicas = replicas;
      }
      if (rule_.grouped) sharding.rank_block = static_cast<int>(copies);
      return sharding;
    }
    return std::nullopt;
  }

  /// Decides by the name alone, or by the rule of the user.
  LayerSharding column_by_name() const {
    auto const& out = question_.outputs;
    LayerSharding sharding{.shard_axis = ShardAxis::column,
                           .replicas = std::max(rule_.replicas, 1),
                           .unproven = !rule_.from_file && all_equal(out),
                           .why = rule_.from_file ? "as the rule says" : "by its name"};
    bool const joined = rule_.parts.size() > 1 && !rule_.grouped && !rule_.plain;
    if (joined) sharding.parts = relative_parts();
    if (gate_is_unknown() || rule_.repeat || (joined && sharding.parts.empty())) {
      refuse("a fused layer, and no config says how wide its parts are", "a config.json with the model's sizes",
             list_text(out));
    }
    auto const unit = sharding.parts.empty() ? 1 : total(sharding.parts);
    for (auto const length : out) {
      if (length % unit != 0)
        refuse("the fused parts do not divide", "multiples of " + std::to_string(unit), list_text(out));
    }
    return sharding;
  }

  /// Returns relative widths of parts whose sizes are unknown: numbers are relative, and equal names have equal widths.
  /// Empty if they are not known.
  std::vector<std::int64_t> relative_parts() const {
    if (has_numbers()) {
      std::vector<std::int64_t> widths;
      for (auto const& part : rule_.parts) widths.push_back(std::get<std::int64_t>(part));
      return relative(std::move(widths));
    }
    bool const even = std::all_of(rule_.parts.begin(), rule_.parts.end(),
                                  [&](RuleSize const& part) { return part == rule_.parts.front(); });
    return even ? std::vector<std::int64_t>(rule_.parts.size(), 1) : std::vector<std::int64_t>();
  }

  bool has_numbers() const {
    return !rule_.parts.empty() && std::all_of(rule_.parts.begin(), rule_.parts.end(), [](RuleSize const& part) {
      return std::holds_alternative<std::int64_t>(part);
    });
  }

  LayerSharding row() const {
    auto const& in = question_.inputs;
    auto const whole = rule_.inputs ? resolve(*rule_.inputs, sizes_) : std::nullopt;
    if (all_are(in, 0))
      return {.shard_axis = ShardAxis::replicate, .why = "a vector of a row-parallel layer is whole on each rank"};
    if (!whole) {
      return {.shard_axis = ShardAxis::row,
              .unproven = !rule_.from_file && all_equal(in),
              .why = rule_.from_file ? "as the rule says" : "by its name"};
    }
    if (all_are(in, *whole)) {
      if (adds_up_to_outputs()) {
        return {.shard_axis = ShardAxis::column,
                .why = "the shards have all inputs, and add up to the config's outputs"};
      }
      return {.shard_axis = ShardAxis::replicate,
              .why = "each rank has all " + std::to_string(*whole) + " inputs of the config"};
    }
    if (total(in) == *whole) {
      return {.shard_axis = ShardAxis::row,
              .why = "the shards add up to the config's " + std::to_string(*whole) + " inputs"};
    }
    refuse_if_ranks_are_missing(in, *whole);
    refuse("the inputs of the shards do not add up to the config's",
           std::to_string(*whole) + " in all, or " + std::to_string(*whole) + " on each rank", list_text(in));
  }

  /// Some programs shard a layer along its outputs that others shard along its inputs.
  bool adds_up_to_outputs() const {
    auto const whole = rule_.parts.size() == 1 ? resolve(rule_.parts.front(), sizes_) : std::nullopt;
    return whole && ranks_ > 1 && !all_are(question_.outputs, *whole) && total(question_.outputs) == *whole;
  }

  LayerSharding vocabulary() const {
    auto const& out = question_.outputs;
    auto const& in = question_.inputs;
    auto const tokens = resolve(rule_.parts.front(), sizes_);
    auto const hidden = rule_.inputs ? resolve(*rule_.inputs, sizes_) : std::nullopt;
    if (!tokens) return {.shard_axis = ShardAxis::column, .unproven = all_equal(out), .why = "by its name"};
    bool const vector = all_are(in, 0);
    bool const wide = vector || !hidden || all_are(in, *hidden);
    if (all_are(out, *tokens)) {
      if (wide)
        return {.shard_axis = ShardAxis::replicate, .why = "each rank has all " + std::to_string(*tokens) + " tokens"};
      if (total(in) == *hidden) return {.shard_axis = ShardAxis::row, .why = "the shards add up to the hidden width"};
    }
    if (!wide)
      refuse("neither tokens nor width of the shards fit the config", size_text(*tokens, hidden), list_text(in));
    auto const largest = *std::max_element(out.begin(), out.end());
    if (total(out) < *tokens) {
      refuse_if_ranks_are_missing(out, *tokens);
      refuse("there are fewer rows than tokens", std::to_string(*tokens), list_text(out));
    }
    LayerSharding sharding{.shard_axis = ShardAxis::column,
                           .why = "the shards add up to " + std::to_string(total(out)) + " rows for the config's " +
                                  std::to_string(*tokens) + " tokens"};
    if (total(out) > *tokens) sharding.true_outputs = *tokens;
    if (largest > *tokens && ranks_ > 1) {
      refuse("each shard has more rows than there are tokens: padded copies, or pieces of a long padding",
             std::to_string(*tokens) + " tokens", list_text(out));
    }
    return sharding;
  }

  static std::string size_text(std::int64_t tokens, std::optional<std::int64_t> hidden) {
    return std::to_string(tokens) + " tokens" + (hidden ? ", width " + std::to_string(*hidden) : std::string());
  }

  ShardingQuery const& question_;
  LayerRule const& rule_;
  ModelSizes const& sizes_;
  std::int64_t ranks_;
};

}  // namespace

bool is_of_kv_heads(RuleSize const& size) {
  return size == RuleSize(SizeName::key_value) || size == RuleSize(SizeName::kv_values);
}

std::optional<std::int64_t> resolve(RuleSize const& size, ModelSizes const& sizes) {
  if (auto const* number = std::get_if<std::int64_t>(&size)) return *number;
  return sizes[std::get<SizeName>(size)];
}

LayerSharding decide_sharding(ShardingQuery const& question, LayerRule const& rule, ModelSizes const& sizes) {
  return ShardingDecision(question, rule, sizes).decide();
}

}  // namespace crossrank::checkpoint
