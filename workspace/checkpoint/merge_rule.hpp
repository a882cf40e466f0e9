#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// How the shards of a tensor become one.
enum class MergeKind : std::uint8_t {
  replicate,   ///< copies must be equal bit for bit (policy says else); one is kept
  concat,      ///< along one dimension
  reduce,      ///< scalars and small vectors become one value
  requantize,  ///< packed values are computed anew
};

/// What to do with one tensor of all tensor-parallel ranks.
struct MergeRule {
  MergeKind kind = MergeKind::replicate;
  int axis = 0;                       ///< concat: dimension of the stored (packed) tensor
  std::vector<std::int64_t> parts{};  ///< concat: widths of the sub-parts of one shard, relative or exact ("[gate; up]"
                                      ///< is {1, 1}); empty: one part. All first parts come first in the result
  int replicas = 1;               ///< concat: this many neighbouring ranks hold the same piece; compared, one kept
  std::int64_t true_size = -1;    ///< concat: the result is cut down to this along `axis`; -1 keeps all
  ReduceOp op = ReduceOp::max;    ///< reduce: max, min or avg
  std::int64_t add_per_rank = 0;  ///< I32 ids that count from 0 in each shard: those of rank r grow by r times this
  std::string output_name{};      ///< empty: the input's
  bool drop = false;              ///< a tied copy that is not written
  std::string reason{};           ///< which rule, in words
};

}  // namespace crossrank::checkpoint
