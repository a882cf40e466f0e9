#include "workspace/checkpoint/rules/split_rule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_proposal.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* split_operation = "split rules";

[[noreturn]] void refuse_ranks(std::string_view module, std::string const& what, std::int64_t count, int ranks) {
  throw UsageError(
      {.operation = split_operation,
       .message = std::to_string(count) + " " + what + " do not divide over " + std::to_string(ranks) + " ranks",
       .resource = std::string(module),
       .hint = "choose a number of ranks that divides them, or keep the layer whole: " +
               propose_rules(module, {"replicate"})});
}

/// One fused part: its place in the whole layer, and the share of a rank.
struct FusedPart {
  std::int64_t begin = 0;
  std::int64_t width = 0;
  std::int64_t unit = 1;  ///< what must not be split: a head
  bool shared = false;    ///< key/value heads: copies where there are fewer than ranks
};

class LayerSplitter {
 public:
  LayerSplitter(std::string_view module, std::int64_t outputs, ColumnLayer const& layer, LayerRule const& rule,
                ModelSizes const& sizes, int ranks)
      : module_(module), outputs_(outputs), layer_(layer), from_file_(rule.from_file), sizes_(sizes), ranks_(ranks) {
    // Only where the parts become layers, numbers are the rows of a group.
    for (auto const& part : rule.part_names.empty() ? std::vector<RuleSize>() : layer.parts) {
      if (auto const* const rows = std::get_if<std::int64_t>(&part)) group_rows_ += *rows;
    }
  }

  LayerSplit column() {
    LayerSplit split{.shard_axis = ShardAxis::column, .ranks = per_rank<std::vector<NumberRange>>(ranks_)};
    require_full_groups();
    auto const kv = sizes_[SizeName::kv_heads];
    auto const pieces = ranks_ / layer_.replicas;
    if (layer_.layout == PartLayout::grouped && !layer_.groups && kv && *kv < pieces && has_queries()) {
      if (layer_.replicas > 1) refuse_ranks(module_, "key/value groups", *kv, pieces);
      share_groups(*kv, split);
    } else {
      for (auto const& part : fused_parts()) add(part, split);
    }
    split.why = "along the outputs";
    return split;
  }

 private:
  std::vector<FusedPart> fused_parts() const {
    switch (layer_.layout) {
      case PartLayout::per_rank: return parts();
      case PartLayout::grouped: return groups();
      case PartLayout::plain: break;
    }
    return {{0, outputs_}};
  }

  /// Throws unless the ranks divide into groups that get the same piece.
  void require_full_groups() const {
    if (ranks_ % layer_.replicas == 0) return;
    throw UsageError({.operation = split_operation,
                      .message = "`replicas` does not divide the number of ranks",
                      .expected = "a multiple of " + std::to_string(layer_.replicas) + " ranks",
                      .got = std::to_string(ranks_),
                      .resource = std::string(module_),
                      .hint = "choose another number of ranks, or correct `replicas` of the rule"});
  }

  void add(FusedPart const& part, LayerSplit& split) const {
    auto const units = part.width / part.unit;
    auto pieces = std::int64_t{ranks_ / layer_.replicas};
    if (part.shared && units < pieces && units > 0 && pieces % units == 0) pieces = units;
    auto const copies = ranks_ / pieces;
    if (part.width % part.unit != 0 || units % pieces != 0) {
      refuse_ranks(module_, part.unit > 1 ? "heads" : "outputs", part.unit > 1 ? units : part.width, ranks_);
    }
    auto const length = part.width / pieces;
    for (std::size_t rank = 0; rank < split.ranks.size(); ++rank) {
      split.ranks[rank].push_back({part.begin + static_cast<std::int64_t>(rank) / copies * length, length});
    }
  }

  std::int64_t head() const {
    auto const query = sizes_[SizeName::query];
    auto const heads = sizes_[SizeName::heads];
    return query && heads && *query % *heads == 0 ? *query / *heads : 1;
  }

  /// Returns how many outputs of a named width stay together.
  FusedPart part_of(RuleSize const& size, std::int64_t begin, std::int64_t width) const {
    bool const shared = is_of_kv_heads(size);
    bool const by_heads = shared || size == RuleSize(SizeName::query);
    auto unit = by_heads ? head() : 1;
    if (auto const kv = sizes_[SizeName::kv_heads]; size == RuleSize(SizeName::kv_values) && kv && width % *kv == 0)
      unit = width / *kv;
    if (auto const heads = sizes_[SizeName::heads];
        size == RuleSize(SizeName::latent_kv) && heads && width % *heads == 0) {
      unit = width / *heads;
    }
    return {begin, width, unit, shared};
  }

  std::vector<FusedPart> parts() const {
    std::vector<RuleSize> named = layer_.parts;
    if (layer_.gate) {
      auto const width = resolve(named.front(), sizes_);
      if (!width && !sizes_.gated()) refuse_unknown_parts();
      bool const gated = sizes_.gated().value_or(width && outputs_ == 2 * *width);
      if (gated) named.push_back(named.front());
    }
    if (layer_.repeat) {
      auto const times = sizes_[*layer_.repeat];
      if (!times || *times > outputs_) refuse_width(0);
      auto const once = named;
      for (std::int64_t i = 1; i < *times; ++i) named.insert(named.end(), once.begin(), once.end());
    }
    if (named.size() < 2) {
      check_width(named);
      return {part_of(named.empty() ? RuleSize(std::int64_t{1}) : named.front(), 0, outputs_)};
    }
    std::vector<std::int64_t> widths;
    for (auto const& part : named) widths.push_back(resolve(part, sizes_).value_or(0));
    if (std::all_of(named.begin(), named.end(), [&](RuleSize const& part) { return part == named.front(); })) {
      std::fill(widths.begin(), widths.end(), 1);
    }
    auto const sum = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    if (sum == 0 && !sizes_.known()) refuse_unknown_parts();
    if (sum == 0 || outputs_ % sum != 0 || std::count(widths.begin(), widths.end(), 0) != 0) refuse_width(sum);
    std::vector<FusedPart> result;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < named.size(); ++i) {
      result.push_back(part_of(named[i], begin, widths[i] * (outputs_ / sum)));
      begin += result.back().width;
    }
    return result;
  }

  void check_width(std::vector<RuleSize> const& named) const {
    if (named.empty() || from_file_) return;
    auto const width = resolve(named.front(), sizes_);
    if (width && *width != outputs_) refuse_width(*width);
  }

  /// A layer of unknown parts could only be split as one block, which no program that shards it would read.
  [[noreturn]] void refuse_unknown_parts() const {
    auto info = unknown_parts(module_, layer_.parts.size(), std::to_string(outputs_));
    info.operation = split_operation;
    info.section = to_string(ErrorSection::shape);
    throw FormatError(std::move(info));
  }

  [[noreturn]] void refuse_width(std::int64_t width) const {
    throw FormatError(
        {.operation = split_operation,
         .message = "the width of the layer contradicts config and rule",
         .expected = width > 0 ? std::to_string(width) : std::string("a config with the widths of the fused parts"),
         .got = std::to_string(outputs_),
         .resource = std::string(module_),
         .hint = propose_rules(module_, {"column", "row", "replicate"}),
         .section = to_string(ErrorSection::shape)});
  }

  bool has_queries() const { return !layer_.parts.empty() && layer_.parts.front() == RuleSize(SizeName::query); }

  /// Splits alternating key/value groups or pairs: each rank gets neighbouring ones.
  std::vector<FusedPart> groups() const {
    if (group_rows_ > 0) {
      if (outputs_ % group_rows_ != 0) refuse_width(group_rows_);
      return {{0, outputs_, group_rows_, false}};
    }
    auto const kv = layer_.groups ? resolve(*layer_.groups, sizes_) : sizes_[SizeName::kv_heads];
    if (!has_queries() || !kv) return {{0, outputs_, 1, false}};
    if (outputs_ % *kv != 0) refuse_width(0);
    return {{0, outputs_, outputs_ / *kv, false}};
  }

  /// Splits fewer groups than ranks: a rank gets a part of a group's queries and a replica of its key and value.
  void share_groups(std::int64_t kv, LayerSplit& split) const {
    auto const copies = ranks_ / kv;
    auto const width = outputs_ / kv;
    auto const query = width - 2 * head();
    if (ranks_ % kv != 0 || outputs_ % kv != 0 || query <= 0 || query % (copies * head()) != 0) {
      refuse_ranks(module_, "key/value groups", kv, ranks_);
    }
    for (std::size_t rank = 0; rank < split.ranks.size(); ++rank) {
      auto const group = static_cast<std::int64_t>(rank) / copies;
      auto const slice = static_cast<std::int64_t>(rank) % copies;
      auto const begin = group * width;
      split.ranks[rank] = {{begin + slice * (query / copies), query / copies},
                           {begin + query, head()},
                           {begin + query + head(), head()}};
    }
  }

  std::string_view module_;
  std::int64_t outputs_;
  ColumnLayer const& layer_;
  bool from_file_;
  ModelSizes const& sizes_;
  int ranks_;
  std::int64_t group_rows_ = 0;  ///< outputs of one group, as numbers give them; 0: not known
};

LayerSplit even(ShardAxis shard_axis, std::int64_t length, int ranks, std::string why) {
  LayerSplit split{.shard_axis = shard_axis, .why = std::move(why)};
  for (int rank = 0; rank < ranks; ++rank) split.ranks.push_back({{length / ranks * rank, length / ranks}});
  return split;
}

LayerSplit split_row(std::string_view module, std::int64_t inputs, int ranks) {
  if (inputs == 0) return {.why = "a vector of a row-parallel layer"};
  if (inputs % ranks != 0) refuse_ranks(module, "inputs", inputs, ranks);
  return even(ShardAxis::row, inputs, ranks, "along the inputs");
}

LayerSplit split_vocabulary(std::int64_t rows, std::optional<std::int64_t> tokens, int ranks) {
  if (tokens && *tokens != rows) return {.why = "other rows than the config's tokens: whole on each rank"};
  if (rows % ranks != 0) return {.why = "the tokens do not divide: whole on each rank"};
  return even(ShardAxis::column, rows, ranks, "along the tokens");
}

[[noreturn]] void refuse_shard_boundary(SourceTensor const& tensor, LayerFormat const& format, std::int64_t unit,
                                        NumberRange range) {
  throw UsageError(
      {.operation = split_operation,
       .message = "a shard boundary splits a stored value (" + std::string(to_string(format.format())) + ")",
       .expected = "multiples of " + std::to_string(unit),
       .got = std::to_string(range.length) + " from " + std::to_string(range.begin) + " on",
       .resource = tensor.name,
       .hint = "choose fewer ranks, or keep the layer whole: " +
               propose_rules(parse_tensor_name(tensor.name).module, {"replicate"}),
       .section = to_string(ErrorSection::shape)});
}

void check_range(SourceTensor const& tensor, LayerFormat const& format, std::int64_t unit, NumberRange range,
                 std::int64_t whole) {
  bool const last = range.begin + range.length == whole;
  if (range.begin % unit != 0 || (range.length % unit != 0 && !last))
    refuse_shard_boundary(tensor, format, unit, range);
}

}  // namespace

std::int64_t SplitRule::length(int rank) const {
  std::int64_t sum = 0;
  for (auto const& piece : ranks.at(as_size(rank))) sum += piece.length;
  return sum;
}

Shape SplitRule::shape(Shape const& whole, int rank) const {
  if (axis < 0) return whole;
  auto const shard = whole.with(as_size(axis), length(rank));
  return experts.empty() || axis == 0 ? shard : shard.with(0, experts.at(as_size(rank)).length);
}

void refuse_flat_weight(SourceTensor const& weight, LayerHints const& hints) {
  bool const is_flat = weight.shape.size() == 2 && weight.shape[1] == 1;
  if (!is_flat || hints.algorithm != "bitsandbytes") return;
  throw FormatError({.operation = split_operation,
                     .message = "weights packed by bitsandbytes cannot be sharded: their blocks cross rows",
                     .resource = weight.name,
                     .hint = "split the model before it is quantized",
                     .section = to_string(ErrorSection::shape)});
}

LayerSplit split_layer(std::string_view module, std::int64_t outputs, std::int64_t inputs, LayerRule const& rule,
                       ModelSizes const& sizes, int ranks) {
  if (rule.left_whole()) return {.why = "programs that shard this model leave it whole"};
  return std::visit(Overloads{[&](ColumnLayer const& layer) {
                                return LayerSplitter(module, outputs, layer, rule, sizes, ranks).column();
                              },
                              [&](RowLayer const&) { return split_row(module, inputs, ranks); },
                              [&](VocabularyLayer const& layer) {
                                auto const tokens = rule.from_file ? std::nullopt : resolve(layer.tokens, sizes);
                                return split_vocabulary(outputs, tokens, ranks);
                              },
                              [](auto const&) { return LayerSplit{.why = "every rank has all of it"}; }},
                    rule.kind);
}

SplitRule split_tensor(SourceTensor const& tensor, TensorRole role, LayerFormat const& format,
                       LayerSplit const& split) {
  SplitRule rule{.reason = split.why};
  if (split.shard_axis == ShardAxis::replicate) return rule;
  bool const column = split.shard_axis == ShardAxis::column;
  if (role == TensorRole::weight_shape) {
    rule.set_element = column ? 0 : 1;
    for (auto const& ranges : split.ranks) {
      rule.elements.push_back(std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                                              [](std::int64_t sum, NumberRange range) { return sum + range.length; }));
    }
    return rule;
  }
  auto const axes = format.axes(role, tensor);
  int const axis = column ? axes.out : axes.in;
  if (axes.single || axis < 0) return rule;
  bool const by_words = format.format() == NumberFormat::gptq || format.format() == NumberFormat::compressed_int;
  if (!column && format.activation_order() && by_words) {
    throw FormatError({.operation = split_operation,
                       .message = "groups in the order of activations cannot be sharded along the inputs",
                       .resource = tensor.name,
                       .hint = "quantize without activation order",
                       .section = to_string(ErrorSection::shape)});
  }
  rule.axis = axis;
  auto const unit = column ? axes.out_unit : axes.in_unit;
  auto const steps = column ? axes.out_steps : axes.in_steps;
  auto const whole = column ? format.outputs() : format.inputs();
  for (auto const& ranges : split.ranks) {
    std::int64_t to = 0;
    rule.ranks.emplace_back();
    for (auto const range : ranges) {
      check_range(tensor, format, unit, range, whole);
      if (!column && format.group() > 0) check_range(tensor, format, format.group(), range, whole);
      SplitRange const piece{range.begin / unit * steps, to, divide_up(range.length, unit) * steps};
      to += piece.length;
      rule.ranks.back().push_back(piece);
    }
  }
  if (role == TensorRole::group_ids && format.group() > 0) {
    rule.subtract_per_group = split.ranks.front().front().length / format.group();
  }
  return rule;
}

}  // namespace crossrank::checkpoint
