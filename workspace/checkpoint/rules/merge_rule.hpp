#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor/shape.hpp>

namespace crossrank::checkpoint {

class Requantization;
struct MergeRule;

/// Keeps one of the shards, which are replicas. They must be equal bit for bit unless the policy allows otherwise.
struct KeepReplica {
  bool operator==(KeepReplica const&) const = default;
};

/// Concatenates the shards along one dimension. The first parts of all shards come first.
struct Concatenate {
  int axis = 0;                       ///< dimension of the stored (packed) tensor
  std::vector<std::int64_t> parts{};  ///< widths of the parts of one shard, relative or exact ("[gate; up]" is {1, 1});
                                      ///< empty: one part
  int replicas = 1;                   ///< number of neighbouring ranks with the same piece; one is kept
  std::vector<int> part_replicas{};   ///< `replicas` of each part if they differ; empty: `replicas`
  int rank_block = 0;  ///< number of neighbouring ranks that form a block; the blocks follow each other; 0: all ranks
                       ///< are one block
  std::int64_t true_size = -1;    ///< length of the result along `axis` without padding; -1: all of it
  std::int64_t add_per_rank = 0;  ///< I32 ids that start at 0 in each shard: those of rank r grow by r times this
  int only_part = -1;             ///< use this part only; -1: all parts
  int part_period =
      0;  ///< number of parts after which they repeat; `only_part` then means one of each repetition; 0: no repetition
  bool unproven =
      false;  ///< no size proves that the shards are pieces, so shards that are equal bit for bit are an error
  bool assumed_layout = false;  ///< nothing proves that each shard holds all parts; most programs do so
  std::shared_ptr<Requantization const> requantization{};  ///< changes each shard's values to common scales before;
                                                           ///< null: the values stay
  bool operator==(Concatenate const&) const = default;
};

/// Reduces scalars or small vectors to one.
struct Reduce {
  ReduceOp op = ReduceOp::max;  ///< max, min or avg
  bool operator==(Reduce const&) const = default;
};

/// Sums one element over the ranks and counts replicas once (an original shape). The other elements must agree.
struct SumElement {
  int element = 0;
  std::vector<std::int64_t> parts{};  ///< as `Concatenate`
  int replicas = 1;                   ///< as `Concatenate`
  std::vector<int> part_replicas{};   ///< as `Concatenate`
  bool operator==(SumElement const&) const = default;
};

/// Takes values that were computed together with the rule, such as scales of blocks that shard boundaries split.
struct UsePrecomputed {
  Shape shape{};
  std::vector<std::byte> bytes{};
  bool operator==(UsePrecomputed const&) const = default;
};

/// Leaves the tensor out of the result.
struct LeaveOut {
  bool operator==(LeaveOut const&) const = default;
};

/// Makes the parts of a fused tensor separate tensors.
struct SeparateParts {
  std::vector<MergeRule> rules;  ///< one per part; without an initializer, because Clang 14 needs the whole type for it
  bool operator==(SeparateParts const&) const = default;
};

/// Merges each group of experts by a rule of its own. Rank t has group t % `groups`.
struct MergeExpertGroups {
  int groups = 1;
  bool operator==(MergeExpertGroups const&) const = default;
};

/// How the shards of one tensor are merged.
using MergeKind = std::variant<KeepReplica, Concatenate, Reduce, SumElement, UsePrecomputed, LeaveOut, SeparateParts,
                               MergeExpertGroups>;

/// The place of a tensor in a fused tensor of the result. Its rows are dimension 0.
struct FusedPlace {
  std::vector<std::string> parts{};    ///< names of the tensors that become the fused tensor, in the order of its rows
  std::size_t part = 0;                ///< number of this tensor in `parts`
  std::vector<std::int64_t> widths{};  ///< rows of each part; grouped: in one group
  std::int64_t times = 0;              ///< how many times its width each part has; 0: the same unknown number for all
  bool grouped = false;                ///< the parts alternate per group; else they follow each other
  bool operator==(FusedPlace const&) const = default;
};

/// The reason of the rules for a single source, which needs no merge.
inline constexpr char const* single_source = "a single source: taken as it is";

/// How one tensor of all tensor-parallel ranks is merged.
struct MergeRule {
  MergeKind kind{};
  std::string output_name{};  ///< empty: the input's name
  std::string reason{};       ///< the rule in words
  int ep_axis = -1;  ///< the pieces of expert-parallel ranks are concatenated along this dimension; -1: they are not
  std::shared_ptr<FusedPlace const> fused{};  ///< the merged tensor becomes a part of the tensor `output_name`

  /// Returns whether the rule is of alternative `Kind`.
  template <class Kind>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Kind>(kind);
  }
  /// Returns the rules of the tensors that it makes: those of the separated parts, or else itself.
  [[nodiscard]] std::span<MergeRule> outputs() {
    auto* const separate = std::get_if<SeparateParts>(&kind);
    return separate != nullptr ? std::span(separate->rules) : std::span(this, 1);
  }
  /// Returns whether the values of the result are computed from those of all ranks.
  [[nodiscard]] bool combines_values() const noexcept { return is<Reduce>() || is<SumElement>(); }
  bool operator==(MergeRule const&) const = default;
};

}  // namespace crossrank::checkpoint
