#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/strided_copy.hpp"

namespace crossrank::checkpoint {

/// Runs of bytes that go from an input to an output.
struct InputRuns {
  TensorAt input{};
  StridedCopy copy{};
  std::int64_t add = 0;                    ///< added to each I32 of the runs
  Requantization const* change = nullptr;  ///< of the input's stored values, before they go to the output
  std::uint32_t shard = 0;                 ///< number of the input's shard for `change`
};

/// Bytes that two inputs hold and that must be equal; the same runs in both.
struct ReplicaRuns {
  TensorAt kept{};
  TensorAt other{};
  StridedRuns runs{};
  bool must_differ = false;  ///< only the names say that these are pieces: equal bytes are the error
};

/// One tensor of the result and the sources of its bytes.
struct MergedTensor {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t bytes = 0;
  std::shared_ptr<MergeRule const> rule{};  ///< without its `output_name`; tensors with equal rules share one
  std::vector<InputRuns> pieces{};          ///< cover a kept or concatenated tensor exactly once
  std::vector<TensorAt> inputs{};           ///< one per tensor-parallel rank, in rank order
  std::size_t combined = 0;  ///< number of inputs that are combined to one piece; the pieces follow each other; 0: the
                             ///< rule combines nothing
  std::vector<std::shared_ptr<Requantization const>> changes{};  ///< owners of `InputRuns::change`
  std::vector<ReplicaRuns> replica_runs{};                       ///< compared before the result is committed
};

/// Returns whether the bytes of the tensor are copied or reduced from its inputs. Otherwise, values are requantized or
/// were computed before.
[[nodiscard]] bool comes_from_inputs_alone(MergedTensor const& tensor);

/// The shards of one tensor in a tensor-parallel group; `shards[t]` is null if rank t has none.
struct ShardGroup {
  std::string_view name{};
  std::size_t first = 0;  ///< source of tensor-parallel rank 0
  std::vector<SourceTensor const*> shards{};
  std::vector<TensorAt> places{};           ///< for each shard
  std::vector<std::string_view> sources{};  ///< names of the files, for messages
};

/// Applies a rule that makes one tensor of a group. `FormatError` for other rules, and when the shards do not fit
/// together or one is missing.
[[nodiscard]] MergedTensor merge_tensor(ShardGroup const& group, MergeRule rule);

}  // namespace crossrank::checkpoint
