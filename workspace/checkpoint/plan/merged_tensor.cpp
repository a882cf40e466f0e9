#include "workspace/checkpoint/plan/merged_tensor.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

std::string describe(SourceTensor const& tensor) {
  return std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape);
}

[[noreturn]] void refuse(ShardGroup const& group, std::string message, std::string expected, std::string got,
                         std::size_t shard) {
  throw FormatError({.operation = plan_operation,
                     .message = "\"" + std::string(group.name) + "\": " + std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = std::string(group.sources[shard]),
                     .hint = "check that all files are of one model and one job; `crossrank inspect` shows each",
                     .failed_ranks = {static_cast<int>(shard)},
                     .section = to_string(ErrorSection::shards)});
}

/// Checks that all shards have one dtype and equal lengths in every dimension except `axis` (-1: no exception).
void require_compatible(ShardGroup const& group, int axis) {
  auto const& first = *group.shards.front();
  for (std::size_t t = 0; t < group.shards.size(); ++t) {
    auto const& shard = *group.shards[t];
    bool const same_rank = shard.shape.size() == first.shape.size();
    bool same = shard.dtype == first.dtype && same_rank;
    for (std::size_t d = 0; same && d < first.shape.size(); ++d)
      same = static_cast<int>(d) == axis || shard.shape[d] == first.shape[d];
    if (!same) {
      refuse(group, "the shards of ranks 0 and " + std::to_string(t) + " do not fit together",
             describe(first) + (axis < 0 ? "" : ", dimension " + std::to_string(axis) + " free"), describe(shard), t);
    }
  }
}

void require_all(ShardGroup const& group) {
  for (std::size_t t = 0; t < group.shards.size(); ++t) {
    if (group.shards[t] != nullptr) continue;
    auto const holder =
        as_size(std::find_if(group.shards.begin(), group.shards.end(), [](auto const* s) { return s != nullptr; }) -
                group.shards.begin());
    refuse(group, "tensor-parallel rank " + std::to_string(t) + " lacks it",
           "as on rank " + std::to_string(holder) + " (" + std::string(group.sources[holder]) + ")", "nothing", t);
  }
}

std::uint64_t bits_behind(Shape const& shape, std::size_t axis, Dtype dtype) {
  std::uint64_t bits = bits_of(dtype);
  for (std::size_t d = axis + 1; d < shape.size(); ++d) bits *= static_cast<std::uint64_t>(shape[d]);
  return bits;
}

std::uint64_t rows_before(Shape const& shape, std::size_t axis) {
  std::uint64_t rows = 1;
  for (std::size_t d = 0; d < axis; ++d) rows *= static_cast<std::uint64_t>(shape[d]);
  return rows;
}

/// Returns the widths of the parts of a shard of `length`.
std::vector<std::int64_t> widths_of(ShardGroup const& group, std::vector<std::int64_t> const& parts,
                                    std::int64_t length, std::size_t shard) {
  if (parts.empty()) return {length};
  auto const sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (sum == length) return parts;
  std::vector<std::int64_t> widths;
  for (auto const part : parts) {
    if (sum <= 0 || length % sum != 0) {
      refuse(group, "the parts of the fused tensor do not divide it", "a multiple of " + std::to_string(sum),
             std::to_string(length), shard);
    }
    widths.push_back(part * (length / sum));
  }
  return widths;
}

/// Concatenates the parts of all shards: in each block of ranks first all first parts, then all second parts.
class ConcatLayout {
 public:
  ConcatLayout(ShardGroup const& group, Concatenate const& rule, MergedTensor& out)
      : group_(group), rule_(rule), out_(out), axis_(as_size(rule.axis)) {
    for (std::size_t t = 0; t < group.shards.size(); ++t)
      widths_.push_back(widths_of(group, rule.parts, group.shards[t]->shape[axis_], t));
    for (std::size_t part = 0; part < widths_.front().size(); ++part) {
      bool const own = part < rule.part_replicas.size();
      replicas_.push_back(as_size(std::max(1, own ? rule.part_replicas[part] : rule.replicas)));
    }
    auto const block = rule.rank_block > 0 ? as_size(rule.rank_block) : group.shards.size();
    for (std::size_t first = 0; first < group.shards.size(); first += block) {
      for (std::size_t part = 0; part < replicas_.size(); ++part) {
        auto const number = rule.part_period > 0 ? part % as_size(rule.part_period) : part;
        if (rule.only_part >= 0 && number != as_size(rule.only_part)) continue;
        for (auto t = first; t < std::min(first + block, group.shards.size()); ++t) slots_.push_back({t, part});
      }
    }
  }

  void lay_out() {
    auto const& first = *group_.shards.front();
    std::int64_t total = 0;
    for (auto const& slot : slots_) total += is_kept(slot) ? width(slot) : 0;
    auto const wanted = rule_.true_size;
    if (wanted > total)
      refuse(group_, "the shards are shorter than the result must be", std::to_string(wanted), std::to_string(total),
             0);
    length_ = wanted >= 0 ? wanted : total;
    out_.shape = first.shape.with(axis_, length_);
    inner_bits_ = bits_behind(first.shape, axis_, first.dtype);
    rows_ = rows_before(first.shape, axis_);
    // A plan has many thousands of these lists, so each gets no more memory than it needs.
    out_.pieces.reserve(
        as_size(std::count_if(slots_.begin(), slots_.end(), [this](auto const& slot) { return is_kept(slot); })));
    std::int64_t at = 0;
    for (auto const& slot : slots_) {
      if (is_kept(slot)) {
        add_input_runs(slot, at, std::min(width(slot), std::max<std::int64_t>(0, length_ - at)));
        at += width(slot);
      } else {
        add_replica(slot);
      }
    }
    if (rule_.unproven) add_opposites();
  }

 private:
  /// A part of a shard.
  struct Slot {
    std::size_t shard = 0;
    std::size_t part = 0;
  };
  [[nodiscard]] bool is_kept(Slot const& slot) const { return slot.shard % replicas_[slot.part] == 0; }
  [[nodiscard]] std::int64_t width(Slot const& slot) const { return widths_[slot.shard][slot.part]; }
  [[nodiscard]] std::int64_t before(Slot const& slot) const {
    auto const& widths = widths_[slot.shard];
    return std::accumulate(widths.begin(), widths.begin() + static_cast<std::ptrdiff_t>(slot.part), std::int64_t{0});
  }
  [[nodiscard]] std::uint64_t bytes(std::int64_t count, std::size_t shard) const {
    auto const bits = static_cast<std::uint64_t>(count) * inner_bits_;
    if (bits % 8 != 0)
      refuse(group_, "a shard boundary falls inside a byte", "whole bytes", std::to_string(bits) + " bits", shard);
    return bits / 8;
  }

  void add_input_runs(Slot const& slot, std::int64_t to, std::int64_t length) {
    if (length <= 0 || rows_ == 0) return;
    auto const shard = slot.shard;
    InputRuns piece{.input = group_.places[shard],
                    .add = rule_.add_per_rank * static_cast<std::int64_t>(shard),
                    .change = rule_.requantization.get(),
                    .shard = static_cast<std::uint32_t>(shard)};
    piece.copy = {.from = {.count = rows_,
                           .run_bytes = bytes(length, shard),
                           .first_byte = bytes(before(slot), shard),
                           .stride_bytes = bytes(group_.shards[shard]->shape[axis_], shard)},
                  .to_first = bytes(to, shard),
                  .to_stride = bytes(length_, shard)};
    piece.copy.merge_adjacent();
    if (piece.copy.from.run_bytes > 0) out_.pieces.push_back(piece);
  }

  void add_replica(Slot const& slot) {
    Slot const kept{slot.shard / replicas_[slot.part] * replicas_[slot.part], slot.part};
    if (widths_[kept.shard] != widths_[slot.shard]) {
      refuse(group_, "replicas differ in length", std::to_string(width(kept)), std::to_string(width(slot)), slot.shard);
    }
    auto const run = bytes(width(slot), slot.shard);
    if (run == 0 || rows_ == 0) return;
    out_.replica_runs.push_back({.kept = group_.places[kept.shard],
                                 .other = group_.places[slot.shard],
                                 .runs = {.count = rows_,
                                          .run_bytes = run,
                                          .first_byte = bytes(before(slot), slot.shard),
                                          .stride_bytes = bytes(group_.shards[slot.shard]->shape[axis_], slot.shard)}});
  }

  void add_opposites() {
    out_.replica_runs.reserve(out_.replica_runs.size() + group_.shards.size() - 1);
    for (std::size_t t = 1; t < group_.shards.size(); ++t) {
      auto const size = dense_bytes(group_.shards[t]->shape, group_.shards[t]->dtype);
      if (size == 0 || !(group_.shards[t]->shape == group_.shards[0]->shape)) continue;
      out_.replica_runs.push_back(
          {.kept = group_.places[0], .other = group_.places[t], .runs = {.run_bytes = size}, .must_differ = true});
    }
  }

  ShardGroup const& group_;
  Concatenate const& rule_;
  MergedTensor& out_;
  std::size_t axis_;
  std::vector<std::vector<std::int64_t>> widths_{};  ///< of the parts of each shard
  std::vector<std::size_t> replicas_{};              ///< of each part
  std::vector<Slot> slots_{};                        ///< in the order of the result
  std::int64_t length_ = 0;
  std::uint64_t inner_bits_ = 0;
  std::uint64_t rows_ = 1;
};

void merge_replicas(ShardGroup const& group, MergedTensor& out) {
  require_compatible(group, -1);
  out.shape = group.shards.front()->shape;
  auto const bytes = dense_bytes(out.shape, out.dtype);
  if (bytes > 0) out.pieces.push_back({.input = group.places.front(), .copy = StridedCopy::whole(bytes)});
  if (bytes == 0) return;
  out.replica_runs.reserve(group.shards.size() - 1);
  for (std::size_t t = 1; t < group.shards.size(); ++t)
    out.replica_runs.push_back({.kept = group.places.front(), .other = group.places[t], .runs = {.run_bytes = bytes}});
}

void merge_concat(ShardGroup const& group, Concatenate& rule, MergedTensor& out) {
  auto const dims = static_cast<int>(group.shards.front()->shape.size());
  int const axis = rule.axis < 0 ? rule.axis + dims : rule.axis;
  if (axis < 0 || axis >= dims) {
    refuse(group, "the dimension to concatenate along does not exist", "dimension " + std::to_string(rule.axis),
           describe(*group.shards.front()), 0);
  }
  rule.axis = axis;
  require_compatible(group, axis);
  if (rule.add_per_rank != 0 && out.dtype != Dtype::i32)
    refuse(group, "`add_per_rank` needs I32 ids", "I32", std::string(name_of(out.dtype)), 0);
  if (group.shards.size() % as_size(std::max(1, rule.replicas)) != 0) {
    refuse(group, "`replicas` does not divide the number of ranks", "a multiple of " + std::to_string(rule.replicas),
           std::to_string(group.shards.size()) + " ranks", 0);
  }
  if (rule.requantization) out.changes.push_back(rule.requantization);
  ConcatLayout(group, rule, out).lay_out();
}

/// Gives the result the shape of a shard, which all ranks must have.
void merge_values(ShardGroup const& group, MergedTensor& out) {
  require_compatible(group, -1);
  out.shape = group.shards.front()->shape;
}

}  // namespace

bool comes_from_inputs_alone(MergedTensor const& tensor) {
  return !tensor.rule->is<UsePrecomputed>() && tensor.changes.empty();
}

MergedTensor merge_tensor(ShardGroup const& group, MergeRule rule) {
  require_all(group);
  MergedTensor out;
  out.name = rule.output_name.empty() ? std::string(group.name) : std::exchange(rule.output_name, {});
  out.dtype = group.shards.front()->dtype;
  out.inputs = group.places;
  std::visit(
      Overloads{[&](KeepReplica const&) { merge_replicas(group, out); },
                [&](Concatenate& concat) { merge_concat(group, concat, out); },
                [&](Reduce const&) { merge_values(group, out); }, [&](SumElement const&) { merge_values(group, out); },
                [&](UsePrecomputed const& values) { out.shape = values.shape; },
                [&](auto const&) {
                  refuse(group, "its rule does not make one tensor", "a rule for one tensor", rule.reason, 0);
                }},
      rule.kind);
  out.bytes = dense_bytes(out.shape, out.dtype);
  if (rule.combines_values()) out.combined = out.inputs.size();
  out.rule = std::make_shared<MergeRule const>(std::move(rule));
  return out;
}

}  // namespace crossrank::checkpoint
