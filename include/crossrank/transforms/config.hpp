#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>

namespace crossrank {

/// The config that all transforms share. Fields and defaults follow optimus_dl.
struct ModelTransformConfig {
  std::string name{};  ///< name of the transform, for messages
};

/// Says how gradients are reduced under data parallelism.
struct DDPTransformConfig {
  bool find_unused_parameters = false;  ///< parameters without a gradient take part with zeros
  bool gradient_as_bucket_view = true;  ///< gradients are views into the buckets, without a second copy
  bool static_graph = false;            ///< gradients become ready in the order of the first step, which is checked
  ModelTransformConfig common{};        ///< what all transforms share
};

/// Says in which dtypes a sharded model computes and communicates. Shards keep their own dtype.
struct MixedPrecisionConfig {
  std::optional<Dtype> param_dtype{};   ///< of gathered parameters; empty: as the shards
  std::optional<Dtype> reduce_dtype{};  ///< of gradients while they are reduced; empty: as the gradients
  std::optional<Dtype> output_dtype{};  ///< of the outputs of `forward`; empty: as the model made them
  bool cast_forward_inputs = true;      ///< whether inputs of `forward` are cast to `param_dtype`
  bool fp8_enabled = false;             ///< whether parameters of two or more dimensions are gathered in `fp8_format`
  Dtype fp8_format = Dtype::f8_e4m3;    ///< F8_E4M3 or F8_E5M2, with one scale for each parameter
};

/// Says where shards, their gradients and optimizer state live. For a model on the CPU this is always host memory.
///
/// With `cpu_offload`, a model on a GPU has only the units that run and their full gradients there: each rank copies
/// its shards to the GPU to gather a unit, and the reduced gradients back, and the optimizer computes on the CPU.
struct OffloadConfig {
  bool cpu_offload = false;  ///< whether they live in host memory; required for models on a GPU
  bool pin_memory = true;    ///< whether that memory is pinned; only for models on a GPU
};

/// Says how parameters are sharded.
struct FullyShardTransformConfig {
  /// Whether a unit gives its full parameters back after its forward pass. A number keeps them sharded in smaller
  /// groups of as many ranks, which must divide the sharding group.
  std::variant<bool, int> reshard_after_forward = false;
  MixedPrecisionConfig mixed_precision{};  ///< dtypes of copies and reductions
  OffloadConfig offload{};                 ///< where the shards live
  bool use_hybrid_sharding = true;         ///< false: shard over all data-parallel ranks
  bool sync_grad_accum = false;            ///< whether every microbatch is reduced
  ModelTransformConfig common{};           ///< what all transforms share
};

/// Returns the config as JSON, with all fields. Local.
[[nodiscard]] CROSSRANK_EXPORT Json to_json(DDPTransformConfig const& config);
/// Returns the config as JSON, with all fields; dtypes have PyTorch's names. Local.
[[nodiscard]] CROSSRANK_EXPORT Json to_json(FullyShardTransformConfig const& config);
/// Returns the config in a JSON object; missing fields have their defaults. `UsageError` for an unknown field, which
/// lists the known ones, or a value of another type. Local.
[[nodiscard]] CROSSRANK_EXPORT DDPTransformConfig ddp_config_from_json(Json const& json);
/// Returns the config in a JSON object; errors as for DDP. `UsageError` for an unknown dtype lists the known names:
/// float64, double, float32, fp32, float16, half, fp16, bfloat16, bf16, float8_e4m3fn, float8_e5m2. Local.
[[nodiscard]] CROSSRANK_EXPORT FullyShardTransformConfig fully_shard_config_from_json(Json const& json);

}  // namespace crossrank
