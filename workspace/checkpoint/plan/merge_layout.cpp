#include "workspace/checkpoint/plan/merge_layout.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/text/nearest_name.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/plan/fused_tensor.hpp"
#include "workspace/checkpoint/plan/row_placement.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {
namespace {

/// Tensors by their numbers, hashed and compared by name, so that a set of them holds no name a second time.
struct TensorNames {
  using is_transparent = void;
  std::vector<MergedTensor> const* tensors = nullptr;

  [[nodiscard]] std::string_view of(std::size_t number) const { return (*tensors)[number].name; }
  [[nodiscard]] static std::string_view of(std::string_view name) { return name; }
};
struct NameHash : TensorNames {
  template <class Key>
  std::size_t operator()(Key const& key) const {
    return std::hash<std::string_view>()(of(key));
  }
};
struct NameEqual : TensorNames {
  template <class A, class B>
  bool operator()(A const& a, B const& b) const {
    return of(a) == of(b);
  }
};

/// Collects the outputs of all stages and expert ranks.
class MergeLayoutBuilder {
 public:
  MergeLayoutBuilder(MergeLayout& layout, RuleFor const& rule_for, OnRefused const& on_refused)
      : layout_(layout), rule_for_(rule_for), on_refused_(on_refused) {}

  void build() {
    std::size_t const width = as_size(layout_.set.tp);
    for (std::size_t first = 0; first < layout_.set.sources.size(); first += width) add_cell(first, width);
    add_fused();
    add_left_out();
    sort_tensors();
    for (auto const& tensor : layout_.tensors) layout_.bytes += tensor.bytes;
  }

 private:
  /// Sorts the tensors by name. Moves each one once and in place, because they are large.
  void sort_tensors() {
    auto& tensors = layout_.tensors;
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](auto a, auto b) { return natural_less(tensors[a].name, tensors[b].name); });
    for (std::size_t start = 0; start < order.size(); ++start) {
      if (order[start] == start) continue;
      auto first = std::move(tensors[start]);
      auto at = start;
      for (auto from = std::exchange(order[at], at); from != start; from = std::exchange(order[at], at)) {
        tensors[at] = std::move(tensors[from]);
        at = from;
      }
      tensors[at] = std::move(first);
    }
  }

  /// Lists the contents of archives that are not part of the model.
  void add_left_out() {
    for (auto const& key : listed(left_out_keys))
      layout_.dropped.push_back({key, "beside the model; `model_key` " + key + " takes it in place of the model"});
    for (auto const& file : listed(left_out_files))
      layout_.dropped.push_back({file, "states of the optimizer; weights are taken in the precision of the training"});
    for (auto const& object : listed(left_out_objects))
      layout_.dropped.push_back({object, "neither a tensor nor a plain value, or an attribute of a tensor"});
    for (auto const& state : listed(left_out_states))
      layout_.dropped.push_back({state, "a state of the training or of a library; it holds no weights"});
  }

  std::set<std::string> listed(char const* attribute) const {
    std::set<std::string> all;
    for (auto const& source : layout_.set.sources) {
      auto const found = source->attributes().find(attribute);
      if (found == source->attributes().end() || !found->is_array()) continue;
      for (auto const& name : *found) {
        if (name.is_string()) all.insert(name.get<std::string>());
      }
    }
    return all;
  }

  /// Adds the tensor-parallel group of one stage and expert rank. Makes one group at a time, because they are large.
  void add_cell(std::size_t first, std::size_t width) {
    constexpr auto absent = std::numeric_limits<std::uint32_t>::max();
    std::unordered_map<std::string_view, std::size_t> rows;
    std::vector<std::string_view> names;
    std::vector<std::uint32_t> numbers;  // of each name's tensor on each rank
    for (std::size_t t = 0; t < width; ++t) {
      auto const tensors = layout_.set.sources[first + t]->tensors();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        auto const [row, fresh] = rows.emplace(tensors[i].name, names.size());
        if (fresh) {
          names.emplace_back(tensors[i].name);
          numbers.resize(numbers.size() + width, absent);
        }
        numbers[row->second * width + t] = static_cast<std::uint32_t>(i);
      }
    }
    // Most tensors of the result have the name of an input, so the list does not grow step by step.
    if (layout_.tensors.empty()) layout_.tensors.reserve(names.size());
    for (std::size_t row = 0; row < names.size(); ++row) {
      auto group = empty_group(names[row], first, width);
      for (std::size_t t = 0; t < width; ++t) {
        auto const number = numbers[row * width + t];
        if (number == absent) continue;
        group.shards[t] = &layout_.set.sources[first + t]->tensors()[number];
        group.places[t] = {static_cast<std::uint32_t>(first + t), number};
      }
      attempt(group.name, [&] { add_group(group); });
    }
  }

  /// Makes one tensor of the parts of a fused layer, which may come from different stages.
  void add_fused() {
    std::map<std::string, std::vector<MergedTensor>> by_name;
    for (auto& part : parts_) by_name[part.name].push_back(std::move(part));
    parts_.clear();
    for (auto& named : by_name) attempt(named.first, [&] { add_tensor(fuse_tensors(std::move(named.second))); });
  }

  template <class Add>
  void attempt(std::string_view name, Add const& add) const {
    try {
      add();
    } catch (Error const& error) {
      if (!on_refused_) throw;
      on_refused_(name, error);
    }
  }

  ShardGroup empty_group(std::string_view name, std::size_t first, std::size_t width) const {
    ShardGroup group{.name = name,
                     .first = first,
                     .shards = std::vector<SourceTensor const*>(width),
                     .places = std::vector<TensorAt>(width)};
    for (std::size_t t = 0; t < width; ++t) group.sources.push_back(layout_.set.sources[first + t]->name());
    return group;
  }

  void add_group(ShardGroup const& group) {
    auto rule = rule_for_ ? rule_for_(group) : MergeRule{.reason = single_source};
    if (rule.is<LeaveOut>()) {
      layout_.dropped.push_back({rule.output_name.empty() ? std::string(group.name) : rule.output_name, rule.reason});
      return;
    }
    if (auto const* const experts = std::get_if<MergeExpertGroups>(&rule.kind))
      return add_expert_groups(group, experts->groups);
    for (auto& output : rule.outputs()) add_tensor(merge_tensor(present(group), std::move(output)));
  }

  /// Adds each group of experts separately; their results are concatenated.
  void add_expert_groups(ShardGroup const& group, int count) {
    for (int number = 0; number < count; ++number) {
      ShardGroup part{.name = group.name, .first = group.first};
      for (std::size_t t = 0; t < group.shards.size(); ++t) {
        if (layout_.set.places[group.first + t].moe != number || group.shards[t] == nullptr) continue;
        part.shards.push_back(group.shards[t]);
        part.places.push_back(group.places[t]);
        part.sources.push_back(group.sources[t]);
      }
      if (part.shards.empty()) continue;
      add_group(part);
    }
  }

  /// Returns the ranks that have the tensor. The rules allow an expert on some ranks only.
  static ShardGroup present(ShardGroup const& group) {
    ShardGroup out{.name = group.name, .first = group.first};
    for (std::size_t t = 0; t < group.shards.size(); ++t) {
      if (group.shards[t] == nullptr) continue;
      out.shards.push_back(group.shards[t]);
      out.places.push_back(group.places[t]);
      out.sources.push_back(group.sources[t]);
    }
    return out;
  }

  /// Returns an equal rule of a tensor before, or else this one. A model has few different rules.
  std::shared_ptr<MergeRule const> shared(std::shared_ptr<MergeRule const> rule) {
    constexpr std::size_t max_remembered = 32;
    for (auto const& known : rules_) {
      if (*known == *rule) return known;
    }
    if (rules_.size() == max_remembered) rules_.erase(rules_.begin());
    return rules_.emplace_back(std::move(rule));
  }

  /// Returns the number of the tensor with this name. If no tensor has it, returns the number that the next one gets.
  [[nodiscard]] std::size_t number_of(std::string_view name) const {
    auto const found = by_name_.find(name);
    return found == by_name_.end() ? layout_.tensors.size() : *found;
  }
  /// Does the same for a part of a fused tensor, and remembers it.
  [[nodiscard]] std::size_t number_of_part(std::string const& name, FusedPlace const& place) {
    return by_part_.emplace(name + ":" + std::to_string(place.part), parts_.size()).first->second;
  }

  void add_tensor(MergedTensor tensor) {
    auto const* const place = tensor.rule->fused.get();
    auto& list = place != nullptr ? parts_ : layout_.tensors;
    auto const number = place != nullptr ? number_of_part(tensor.name, *place) : number_of(tensor.name);
    tensor.rule = shared(std::move(tensor.rule));
    if (number == list.size()) {
      list.push_back(std::move(tensor));
      if (place == nullptr) by_name_.insert(number);
      return;
    }
    auto& kept = list[number];
    refuse_one_name_for_two(kept, tensor);
    if (tensor.rule->ep_axis >= 0) return append(kept, std::move(tensor));
    if (kept.dtype != tensor.dtype || !(kept.shape == tensor.shape) || kept.inputs.size() != tensor.inputs.size())
      refuse_collision(kept, tensor);
    for (std::size_t t = 0; t < tensor.inputs.size(); ++t) {
      auto const& input = layout_.set.sources[tensor.inputs[t].source]->tensors()[tensor.inputs[t].tensor];
      auto const bytes = dense_bytes(input.shape, input.dtype);
      if (bytes > 0)
        kept.replica_runs.push_back({.kept = kept.inputs[t], .other = tensor.inputs[t], .runs = {.run_bytes = bytes}});
    }
    kept.replica_runs.insert(kept.replica_runs.end(), tensor.replica_runs.begin(), tensor.replica_runs.end());
  }

  /// Makes values that agree on all ranks, and are therefore kept, follow the rule that reduces the values of another
  /// expert rank.
  static void reduce_as(MergedTensor& agreeing, MergedTensor const& reduced) {
    if (!agreeing.rule->is<KeepReplica>() || !reduced.rule->is<Reduce>()) return;
    agreeing.rule = reduced.rule;
    agreeing.combined = agreeing.inputs.size();
    agreeing.pieces.clear();
  }

  /// Appends the piece of another expert rank.
  void append(MergedTensor& kept, MergedTensor more) {
    reduce_as(kept, more);
    reduce_as(more, kept);
    auto const axis = as_size(more.rule->ep_axis);
    auto const* const values = std::get_if<UsePrecomputed>(&more.rule->kind);
    bool same = kept.dtype == more.dtype && kept.shape.size() == more.shape.size() && axis < kept.shape.size() &&
                kept.combined == more.combined && !kept.rule->is<SumElement>() &&
                kept.rule->is<UsePrecomputed>() == (values != nullptr) &&
                ((values == nullptr && kept.combined == 0) || axis == 0);
    for (std::size_t d = 0; same && d < kept.shape.size(); ++d) same = d == axis || kept.shape[d] == more.shape[d];
    if (!same) refuse_collision(kept, more);
    auto const old_width = kept.shape[axis];
    kept.shape = kept.shape.with(axis, old_width + more.shape[axis]);
    std::uint64_t inner = bits_of(kept.dtype);
    for (auto d = axis + 1; d < kept.shape.size(); ++d) inner *= static_cast<std::uint64_t>(kept.shape[d]);
    RowPlacement const in_kept{0, static_cast<std::uint64_t>(old_width) * inner / 8,
                               static_cast<std::uint64_t>(kept.shape[axis]) * inner / 8};
    RowPlacement const in_more{in_kept.old_row, static_cast<std::uint64_t>(more.shape[axis]) * inner / 8,
                               in_kept.new_row};
    std::vector<InputRuns> pieces;
    for (auto const& piece : kept.pieces) place_rows(piece, in_kept, pieces);
    for (auto const& piece : more.pieces) place_rows(piece, in_more, pieces);
    kept.pieces = std::move(pieces);
    kept.bytes = dense_bytes(kept.shape, kept.dtype);
    if (values != nullptr) {
      auto rule = *kept.rule;
      auto& joined = std::get<UsePrecomputed>(rule.kind);
      joined.shape = kept.shape;
      joined.bytes.insert(joined.bytes.end(), values->bytes.begin(), values->bytes.end());
      kept.rule = std::make_shared<MergeRule const>(std::move(rule));
    }
    kept.replica_runs.insert(kept.replica_runs.end(), more.replica_runs.begin(), more.replica_runs.end());
    kept.inputs.insert(kept.inputs.end(), more.inputs.begin(), more.inputs.end());
    kept.changes.insert(kept.changes.end(), more.changes.begin(), more.changes.end());
  }

  /// Stages and expert ranks may hold the same tensor. One rank has two of a name only after a rename.
  void refuse_one_name_for_two(MergedTensor const& kept, MergedTensor const& more) const {
    for (auto const& one : kept.inputs) {
      for (auto const& other : more.inputs) {
        if (one.source != other.source || one.tensor == other.tensor) continue;
        auto const& source = *layout_.set.sources[one.source];
        throw FormatError({.operation = plan_operation,
                           .message = "two tensors are given the name \"" + kept.name + "\"",
                           .got = source.tensors()[one.tensor].name + " and " + source.tensors()[other.tensor].name,
                           .resource = source.name(),
                           .hint = "correct the \"rename\" in `rules`",
                           .section = to_string(ErrorSection::rules)});
      }
    }
  }

  [[noreturn]] void refuse_collision(MergedTensor const& kept, MergedTensor const& more) const {
    throw FormatError({.operation = plan_operation,
                       .message = "two stages or expert ranks give different tensors the name \"" + kept.name + "\"",
                       .expected = std::string(name_of(kept.dtype)) + " " + to_string(kept.shape),
                       .got = std::string(name_of(more.dtype)) + " " + to_string(more.shape),
                       .resource = layout_.set.sources[more.inputs.front().source]->name(),
                       .hint = "pass the `tp`, `pp` and `ep` of the job",
                       .section = to_string(ErrorSection::shards)});
  }

  MergeLayout& layout_;
  RuleFor const& rule_for_;
  OnRefused const& on_refused_;
  std::unordered_set<std::size_t, NameHash, NameEqual> by_name_{0, {&layout_.tensors}, {&layout_.tensors}};
  std::vector<MergedTensor> parts_{};                       ///< of fused tensors
  std::unordered_map<std::string, std::size_t> by_part_{};  ///< by the name of the fused tensor and the part
  std::vector<std::shared_ptr<MergeRule const>> rules_{};
};

}  // namespace

std::vector<std::string> names_of(MergeLayout const& layout) {
  std::vector<std::string> names;
  for (auto const& tensor : layout.tensors) names.push_back(tensor.name);
  return names;
}

MergedTensor const& find_tensor(MergeLayout const& layout, std::string_view name) {
  auto const found =
      std::lower_bound(layout.tensors.begin(), layout.tensors.end(), name,
                       [](auto const& tensor, std::string_view other) { return natural_less(tensor.name, other); });
  if (found != layout.tensors.end() && found->name == name) return *found;
  auto const near = nearest_name(name, names_of(layout));
  throw UsageError({.operation = plan_operation,
                    .message = "there is no tensor \"" + std::string(name) + "\" in the result",
                    .got = std::to_string(layout.tensors.size()) + " others",
                    .hint = near ? "did you mean " + *near + "?" : "`crossrank inspect` lists them"});
}

std::vector<CombinedRange> combined_ranges(MergeLayout const& layout, MergedTensor const& tensor, std::uint64_t offset,
                                           std::uint64_t size) {
  constexpr std::uint64_t unit = 48;  // bytes: whole elements of every dtype, also of those that share bytes
  bool const as_whole = tensor.rule->is<SumElement>();
  std::vector<CombinedRange> ranges;
  std::uint64_t at = 0;
  for (std::size_t first = 0; first < tensor.inputs.size(); first += tensor.combined) {
    auto const inputs = std::span(tensor.inputs).subspan(first, tensor.combined);
    auto const& value = layout.set.sources[inputs.front().source]->tensors()[inputs.front().tensor];
    auto const bytes = dense_bytes(value.shape, value.dtype);
    auto const begin = std::max(offset, at);
    auto const end = std::min(offset + size, at + bytes);
    if (begin < end) {
      auto const from = as_whole ? 0 : (begin - at) / unit * unit;
      auto const to = as_whole ? bytes : std::min<std::uint64_t>((end - at + unit - 1) / unit * unit, bytes);
      ranges.push_back({inputs, from, to, at + from});
    }
    at += bytes;
  }
  return ranges;
}

MergeLayout lay_out_merge(ShardSet set, RuleFor const& rule_for, OnRefused const& on_refused) {
  MergeLayout layout;
  layout.set = std::move(set);
  MergeLayoutBuilder(layout, rule_for, on_refused).build();
  return layout;
}

}  // namespace crossrank::checkpoint
