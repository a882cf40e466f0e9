#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor/shape.hpp>

namespace crossrank::checkpoint {

class Requantization;

/// A tensor of the result that was computed together with its rule.
struct PrecomputedValues {
  Shape shape{};
  std::vector<std::byte> bytes{};
};

/// The place of a tensor in a fused tensor of the result. Its rows are dimension 0.
struct FusedPlace {
  std::vector<std::string> parts{};    ///< names of the tensors that become the fused tensor, in the order of its rows
  std::size_t part = 0;                ///< number of this tensor in `parts`
  std::vector<std::int64_t> widths{};  ///< rows of each part; grouped: in one group
  std::int64_t times = 0;              ///< each part has so many times its width; 0: the same unknown number for all
  bool grouped = false;                ///< the parts alternate per group; else they follow each other
  bool operator==(FusedPlace const&) const = default;
};

/// How the shards of a tensor are merged.
enum class MergeKind : std::uint8_t {
  replicate,   ///< replicas must be equal bit for bit unless the policy allows otherwise; one is kept
  concat,      ///< concatenated along one dimension
  reduce,      ///< scalars and small vectors are reduced to one value
  requantize,  ///< stored values are requantized to common scales
  given,       ///< the rule holds the result: new scales of blocks that shard boundaries split
};

/// The reason of the rules for a single source, which needs no merge.
inline constexpr char const* single_source = "a single source: taken as it is";

/// How one tensor of all tensor-parallel ranks is merged.
struct MergeRule {
  MergeKind kind = MergeKind::replicate;
  int axis = 0;                       ///< concat: dimension of the stored (packed) tensor
  std::vector<std::int64_t> parts{};  ///< concat: widths of the parts of one shard, relative or exact ("[gate; up]"
                                      ///< is {1, 1}); empty: one part. The first parts of all shards come first
  int replicas = 1;                   ///< concat: number of neighbouring ranks with the same piece; one is kept
  std::int64_t true_size = -1;        ///< concat: length of the result along `axis` without padding; -1: all of it
  ReduceOp op = ReduceOp::max;        ///< reduce: max, min or avg; sum with `sum_element`
  std::int64_t add_per_rank = 0;      ///< I32 ids that start at 0 in each shard: those of rank r grow by r times this
  std::string output_name{};          ///< empty: the input's name
  bool drop = false;                  ///< the tensor is not part of the result
  std::string reason{};               ///< the rule in words
  std::vector<int> part_replicas{};   ///< concat: `replicas` of each part if they differ; empty: `replicas`
  int rank_block = 0;  ///< concat: so many neighbouring ranks form a block, and the blocks follow each other;
                       ///< 0: all ranks are one block
  int ep_axis = -1;    ///< the pieces of expert-parallel ranks are concatenated along this dimension; -1: they are not
  int expert_ranks = 1;  ///< number of groups of experts; rank t has group t % `expert_ranks`. If it is above 1, each
                         ///< group has its own rule, and the other members are unused
  int sum_element = -1;  ///< reduce: this element is the sum over ranks without replicas (`parts`, `replicas`);
                         ///< the other elements must agree (an original shape)
  bool unproven =
      false;  ///< no size proves that the shards are pieces, so shards that are equal bit for bit are an error
  std::shared_ptr<Requantization const> requantization{};  ///< requantize: applied to each shard before
                                                           ///< concatenation
  std::shared_ptr<PrecomputedValues const> given{};        ///< given: the result
  int only_part = -1;                                      ///< concat: use this part only; -1: all parts
  int part_period = 0;  ///< concat: the parts repeat after so many, and `only_part` means one of each repetition
  bool assumed_layout = false;       ///< concat: nothing proves that each shard holds all parts; most programs do so
  std::vector<MergeRule> outputs{};  ///< rules of the parts of a fused tensor, which become separate tensors. If there
                                     ///< are any, the other members are unused
  std::shared_ptr<FusedPlace const> fused{};  ///< the merged tensor becomes a part of the tensor `output_name`
  bool operator==(MergeRule const&) const = default;
};

}  // namespace crossrank::checkpoint
