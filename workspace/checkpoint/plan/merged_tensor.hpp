#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/shape.hpp>

#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Names a tensor of a shard set.
struct TensorAt {
  std::uint32_t source = 0;
  std::uint32_t tensor = 0;
  bool operator==(TensorAt const&) const = default;
};

/// Runs of bytes that go from an input to an output: `rows` of them, each `run` bytes long, in row-major order.
struct InputRuns {
  TensorAt from{};
  std::uint64_t rows = 1;
  std::uint64_t run = 0;
  std::uint64_t from_at = 0;      ///< first byte in the input tensor
  std::uint64_t from_stride = 0;  ///< between the starts of two runs there
  std::uint64_t to_at = 0;
  std::uint64_t to_stride = 0;
  std::int64_t add = 0;                    ///< added to each I32 of the piece
  Requantization const* change = nullptr;  ///< of the input's stored values, before they go to the output
  std::uint32_t shard = 0;                 ///< as the change counts shards
};

/// Bytes that an input holds once more and that must be equal to those of another; the same runs in both.
struct ReplicaRuns {
  TensorAt kept{};
  TensorAt other{};
  std::uint64_t rows = 1;
  std::uint64_t run = 0;
  std::uint64_t at = 0;
  std::uint64_t stride = 0;
  bool must_differ = false;  ///< copies, where only the name says that these are pieces, are the error
};

/// One tensor of the result and where its bytes come from.
struct MergedTensor {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t bytes = 0;
  MergeRule rule{};
  std::vector<InputRuns> pieces{};  ///< replicate and concat: cover the tensor exactly once
  std::vector<TensorAt> inputs{};   ///< of all tensor-parallel ranks, in their order
  std::vector<std::shared_ptr<Requantization const>> changes{};  ///< that pieces point to
  std::vector<ReplicaRuns> replica_runs{};  ///< compared before anything is written, or while it is
};

/// One tensor-parallel group's view of a tensor: `shards[t]` is null where rank t has none.
struct ShardGroup {
  std::string_view name{};
  std::size_t first = 0;  ///< source of tensor-parallel rank 0
  std::vector<SourceTensor const*> shards{};
  std::vector<TensorAt> places{};           ///< for each shard
  std::vector<std::string_view> sources{};  ///< names of the files, for messages
};

/// Lays out what a rule makes of a group. `FormatError` when the shards do not fit together or one is missing.
[[nodiscard]] MergedTensor merge_tensor(ShardGroup const& group, MergeRule rule);

}  // namespace crossrank::checkpoint
