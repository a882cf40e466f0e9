#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/shape.hpp>

namespace crossrank::checkpoint {

class Requantization;

/// A tensor of the result that was computed when its rule was made.
struct PrecomputedValues {
  Shape shape{};
  std::vector<std::byte> bytes{};
};

/// How the shards of a tensor become one.
enum class MergeKind : std::uint8_t {
  replicate,   ///< copies must be equal bit for bit (policy says else); one is kept
  concat,      ///< along one dimension
  reduce,      ///< scalars and small vectors become one value
  requantize,  ///< packed values are computed anew
  given,       ///< the rule holds the result: scales of blocks that shard boundaries had split
};

/// The reason where there is one source and nothing to merge.
inline constexpr char const* single_source = "a single source: taken as it is";

/// What to do with one tensor of all tensor-parallel ranks.
struct MergeRule {
  MergeKind kind = MergeKind::replicate;
  int axis = 0;                       ///< concat: dimension of the stored (packed) tensor
  std::vector<std::int64_t> parts{};  ///< concat: widths of the sub-parts of one shard, relative or exact ("[gate; up]"
                                      ///< is {1, 1}); empty: one part. All first parts come first in the result
  int replicas = 1;                   ///< concat: this many neighbouring ranks hold the same piece; compared, one kept
  std::int64_t true_size = -1;        ///< concat: the result is cut down to this along `axis`; -1 keeps all
  ReduceOp op = ReduceOp::max;        ///< reduce: max, min or avg
  std::int64_t add_per_rank = 0;      ///< I32 ids that count from 0 in each shard: those of rank r grow by r times this
  std::string output_name{};          ///< empty: the input's
  bool drop = false;                  ///< a tied copy that is not written
  std::string reason{};               ///< which rule, in words
  std::vector<int> part_replicas{};   ///< concat: `replicas` of each part, where fused parts differ; empty: `replicas`
  int rank_block = 0;  ///< concat: so many neighbouring ranks are joined by themselves, their blocks one after another;
                       ///< 0: all ranks are one block
  int ep_axis = -1;    ///< pieces of the expert-parallel ranks follow each other along this dimension; -1: they do not
  int expert_ranks = 1;  ///< so many groups of experts are spread over the ranks: each group, rank t's is t % this, has
                         ///< a rule of its own, and this one says nothing else
  int sum_element = -1;  ///< reduce: this element is the sum over ranks, each piece counted once (`parts`, `replicas`);
                         ///< the others must agree (an original shape)
  bool unproven =
      false;  ///< only the name says that the shards are pieces: pieces that are equal bit for bit are an error
  std::shared_ptr<Requantization const> requantization{};  ///< requantize: changes the bytes of each rank's shard,
                                                           ///< which then go where concat puts them
  std::shared_ptr<PrecomputedValues const> given{};        ///< given: the result
  int only_part = -1;                                      ///< concat: of the sub-parts this one alone; -1: all
  bool assumed_layout = false;  ///< concat: that each shard holds all sub-parts is what most programs do, and no more
  std::vector<MergeRule> outputs{};  ///< the parts of a fused tensor, each a tensor of its own with a rule of its own;
                                     ///< this one then says nothing else
};

}  // namespace crossrank::checkpoint
