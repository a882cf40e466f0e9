#include "workspace/checkpoint/rules/layer_sharding.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_proposal.hpp"

namespace crossrank::checkpoint {
namespace {

// If a layer has more pieces, something else is wrong with it.
constexpr std::int64_t max_ranks = 4096;
constexpr std::int64_t max_copies_of_part = 4096;

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

/// Whether the last piece may be padded so that it is as long as the others, as in a vocabulary.
enum class Padding : std::uint8_t { none, last_piece };

class ShardingByLengths {
 public:
  ShardingByLengths(ShardingQuery const& query, ModelSizes const& sizes, bool from_file)
      : query_(query), sizes_(sizes), from_file_(from_file), ranks_(static_cast<std::int64_t>(query.outputs.size())) {}

  LayerSharding decide(RuleKind const& kind) const {
    return std::visit(Overloads{[&](ColumnLayer const& layer) { return column(layer); },
                                [&](RowLayer const& layer) { return row(layer); },
                                [&](VocabularyLayer const& layer) { return vocabulary(layer); },
                                [](auto const&) { return LayerSharding{.why = "every rank has all of it"}; }},
                      kind);
  }

 private:
  [[noreturn]] void refuse(std::string const& message, std::string const& expected, std::string const& got) const {
    refuse({.message = message,
            .expected = expected,
            .got = got,
            .resource = std::string(query_.module),
            .hint = propose_rules(query_.module, {"column", "row", "replicate"})});
  }

  [[noreturn]] void refuse(ErrorInfo info) const {
    if (!query_.has_weight) {
      throw FormatError({.operation = "merge rules",
                         .message = "no rank has the weight of this layer, only its scales or similar tensors",
                         .resource = std::string(query_.module),
                         .hint = "check that all files exist, are complete and belong to one model",
                         .section = to_string(ErrorSection::coverage)});
    }
    info.operation = "merge rules";
    info.section = to_string(ErrorSection::lengths);
    throw FormatError(std::move(info));
  }

  /// Throws if equal pieces make up only a part of the whole, because files are missing.
  void refuse_if_ranks_are_missing(std::span<std::int64_t const> lengths, std::int64_t whole,
                                   Padding padding = Padding::none, int replicas = 1) const {
    auto const piece = lengths.front();
    bool const divides = piece > 0 && (whole % piece == 0 || padding == Padding::last_piece);
    if (!divides || !all_equal(lengths)) return;
    auto const pieces = (whole + piece - 1) / piece;
    if (pieces > max_ranks) return;
    auto const all = pieces * replicas;
    if (all <= ranks_ || all > max_ranks) return;
    std::vector<int> missing;
    for (auto rank = ranks_; rank < all; ++rank) missing.push_back(static_cast<int>(rank));
    throw FormatError(
        {.operation = "merge rules",
         .message = "each file has a piece of " + std::to_string(all) + ", and there are " + std::to_string(ranks_),
         .expected = std::to_string(whole) + " in all",
         .got = std::to_string(piece) + " on each of " + std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks"),
         .resource = std::string(query_.module),
         .hint = "copy the files of the missing ranks there",
         .failed_ranks = std::move(missing),
         .section = to_string(ErrorSection::missing_ranks)});
  }

  /// Returns the sizes of the layer's parts; no value for a size that the config lacks.
  std::vector<std::optional<std::int64_t>> parts(ColumnLayer const& layer) const {
    std::vector<std::optional<std::int64_t>> widths;
    for (auto const& part : layer.parts) widths.push_back(resolve(part, sizes_));
    if (layer.gate && sizes_.gated().value_or(false)) widths.push_back(widths.front());
    if (!layer.repeat) return widths;
    auto const times = sizes_[*layer.repeat];
    if (!times || *times > max_copies_of_part) return {std::nullopt};
    auto const once = widths;
    for (std::int64_t i = 1; i < *times; ++i) widths.insert(widths.end(), once.begin(), once.end());
    return widths;
  }

  bool gate_is_unknown(ColumnLayer const& layer) const { return layer.gate && !sizes_.gated(); }

  LayerSharding column(ColumnLayer const& layer) const {
    auto const widths = parts(layer);
    bool const known =
        !widths.empty() && std::all_of(widths.begin(), widths.end(), [](auto w) { return w.has_value(); });
    if (!known || gate_is_unknown(layer) || has_numbers(layer)) return column_by_name(layer);
    std::vector<std::int64_t> full;
    for (auto const width : widths) full.push_back(*width);
    auto const whole = total(full);
    auto const& out = query_.outputs;
    if (all_are(out, whole)) {
      return {.shard_axis = ShardAxis::replicate,
              .why = "each rank has all " + std::to_string(whole) + " outputs of the config"};
    }
    if (adds_up(layer, whole)) return column_of(layer, full, whole);
    if (auto const shared = layer.layout == PartLayout::plain ? std::nullopt : with_shared_heads(layer, full))
      return *shared;
    refuse_if_ranks_are_missing(out, whole, Padding::none, layer.replicas);
    require_full_groups(layer);
    auto const groups = layer.replicas > 1
                            ? " in all if each group of " + std::to_string(layer.replicas) + " ranks counts once"
                            : std::string(" in all");
    refuse("the outputs of the shards do not add up to the config's",
           std::to_string(whole) + groups + ", or " + std::to_string(whole) + " on each rank", list_text(out));
  }

  /// Returns whether the shards add up to the whole layer, when neighbours with the same piece count once.
  bool adds_up(ColumnLayer const& layer, std::int64_t whole) const {
    auto const sum = total(query_.outputs);
    return ranks_ % layer.replicas == 0 && sum % layer.replicas == 0 && sum / layer.replicas == whole;
  }

  /// Throws unless the ranks divide into groups that hold the same piece.
  void require_full_groups(ColumnLayer const& layer) const {
    if (ranks_ % layer.replicas == 0) return;
    refuse("`replicas` does not divide the number of ranks",
           "a multiple of " + std::to_string(layer.replicas) + " ranks", std::to_string(ranks_));
  }

  LayerSharding column_of(ColumnLayer const& layer, std::vector<std::int64_t> const& full, std::int64_t whole) const {
    auto const& out = query_.outputs;
    LayerSharding sharding{.shard_axis = ShardAxis::column,
                           .replicas = layer.replicas,
                           .why = "the shards add up to the config's " + std::to_string(whole) + " outputs"};
    if (full.size() < 2 || layer.layout != PartLayout::per_rank) return sharding;
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
  std::optional<LayerSharding> with_shared_heads(ColumnLayer const& layer,
                                                 std::vector<std::int64_t> const& full) const {
    auto const heads = sizes_[SizeName::kv_heads];
    if (!heads || full.size() != layer.parts.size() || !all_equal(query_.outputs)) return std::nullopt;
    // The heads are shared by groups of ranks that hold the same piece.
    if (ranks_ % layer.replicas != 0 || (layer.replicas > 1 && layer.layout == PartLayout::grouped))
      return std::nullopt;
    auto const groups = ranks_ / layer.replicas;
    for (auto const copies : {groups / std::max<std::int64_t>(*heads, 1), groups}) {
      if (copies < 2 || groups % copies != 0) continue;
      std::vector<std::int64_t> widths;
      std::vector<int> replicas;
      bool divides = true;
      bool any_shared = false;
      for (std::size_t i = 0; i < full.size(); ++i) {
        bool const shared = is_of_kv_heads(layer.parts[i]);
        auto const pieces = shared ? groups / copies : groups;
        divides = divides && full[i] % pieces == 0;
        any_shared = any_shared || shared;
        widths.push_back(full[i] / pieces);
        replicas.push_back(static_cast<int>(ranks_ / pieces));
      }
      if (!divides || !any_shared || total(widths) != query_.outputs.front()) continue;
      LayerSharding sharding{.shard_axis = ShardAxis::column,
                             .parts = relative(widths),
                             .why = std::to_string(*heads) + " key/value heads on " + std::to_string(ranks_) +
                                    " ranks: each is on " + std::to_string(copies * layer.replicas) + " neighbours"};
      if (full.size() == 1) {
        sharding.replicas = replicas.front();
      } else {
        sharding.part_replicas = replicas;
      }
      if (layer.layout == PartLayout::grouped) sharding.rank_block = static_cast<int>(copies);
      return sharding;
    }
    return std::nullopt;
  }

  /// Decides by the name alone, or by the rule of the user.
  LayerSharding column_by_name(ColumnLayer const& layer) const {
    auto const& out = query_.outputs;
    require_full_groups(layer);
    LayerSharding sharding{.shard_axis = ShardAxis::column,
                           .replicas = layer.replicas,
                           .unproven = !from_file_ && all_equal(out),
                           .why = from_file_ ? "as the rule says" : "by its name"};
    bool const joined = layer.parts.size() > 1 && layer.layout == PartLayout::per_rank;
    if (joined) sharding.parts = relative_parts(layer);
    if (gate_is_unknown(layer) || layer.repeat || (joined && sharding.parts.empty())) {
      refuse(unknown_parts(query_.module, layer.parts.size(), list_text(out)));
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
  std::vector<std::int64_t> relative_parts(ColumnLayer const& layer) const {
    if (has_numbers(layer)) {
      std::vector<std::int64_t> widths;
      for (auto const& part : layer.parts) widths.push_back(std::get<std::int64_t>(part));
      return relative(std::move(widths));
    }
    bool const even = std::all_of(layer.parts.begin(), layer.parts.end(),
                                  [&](RuleSize const& part) { return part == layer.parts.front(); });
    return even ? std::vector<std::int64_t>(layer.parts.size(), 1) : std::vector<std::int64_t>();
  }

  static bool has_numbers(ColumnLayer const& layer) {
    return !layer.parts.empty() && std::all_of(layer.parts.begin(), layer.parts.end(), [](RuleSize const& part) {
      return std::holds_alternative<std::int64_t>(part);
    });
  }

  LayerSharding row(RowLayer const& layer) const {
    auto const& in = query_.inputs;
    auto const whole = resolve(layer.inputs, sizes_);
    if (all_are(in, 0))
      return {.shard_axis = ShardAxis::replicate, .why = "a vector of a row-parallel layer is whole on each rank"};
    if (!whole) {
      return {.shard_axis = ShardAxis::row,
              .unproven = !from_file_ && all_equal(in),
              .why = from_file_ ? "as the rule says" : "by its name"};
    }
    if (all_are(in, *whole)) {
      if (adds_up_to_outputs(layer)) {
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
  bool adds_up_to_outputs(RowLayer const& layer) const {
    auto const whole = resolve(layer.outputs, sizes_);
    return whole && ranks_ > 1 && !all_are(query_.outputs, *whole) && total(query_.outputs) == *whole;
  }

  LayerSharding vocabulary(VocabularyLayer const& layer) const {
    auto const& out = query_.outputs;
    auto const& in = query_.inputs;
    auto const tokens = resolve(layer.tokens, sizes_);
    auto const hidden = sizes_[SizeName::hidden];
    bool const vector = all_are(in, 0);
    if (!tokens && hidden && !vector && !all_are(in, *hidden)) {
      if (total(in) == *hidden) return {.shard_axis = ShardAxis::row, .why = "the shards add up to the hidden width"};
      refuse_if_ranks_are_missing(in, *hidden);
    }
    if (!tokens) return {.shard_axis = ShardAxis::column, .unproven = all_equal(out), .why = "by its name"};
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
      refuse_if_ranks_are_missing(out, *tokens, Padding::last_piece);
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

  ShardingQuery const& query_;
  ModelSizes const& sizes_;
  bool from_file_;
  std::int64_t ranks_;
};

}  // namespace

std::string_view to_string(ShardAxis shard_axis) noexcept {
  switch (shard_axis) {
    case ShardAxis::replicate: return "replicate";
    case ShardAxis::column: return "column";
    case ShardAxis::row: return "row";
  }
  return "unknown";
}

LayerSharding decide_sharding(ShardingQuery const& query, LayerRule const& rule, ModelSizes const& sizes) {
  return ShardingByLengths(query, sizes, rule.from_file).decide(rule.kind);
}

}  // namespace crossrank::checkpoint
