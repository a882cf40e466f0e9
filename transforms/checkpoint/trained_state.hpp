#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/transforms/model.hpp>
#include <crossrank/transforms/optimizer.hpp>

#include "lib/codec/json/json_document.hpp"

namespace crossrank::transforms {

/// Name of the file with what is not a tensor.
inline constexpr char const* training_state_name = "training_state.json";
/// Limits of that file. The caller's state may list the order of millions of samples.
inline constexpr codec::JsonLimits training_state_limits{.bytes = codec::listing_limits.bytes,
                                                         .values = codec::listing_limits.values,
                                                         .depth = codec::description_limits.depth};
/// Beginning of the names of the optimizer's files, and of its tensors in them.
inline constexpr char const* optimizer_stem = "optimizer";
inline constexpr char const* optimizer_prefix = "optimizer.state.";
/// Keys of the dicts of a distributed checkpoint, as PyTorch's recipes name them.
inline constexpr char const* dcp_model_key = "model";
inline constexpr char const* dcp_optimizer_key = "optim";
inline constexpr char const* dcp_state_prefix = "optim.state.";

/// One tensor of the optimizer's state: like this rank's part of its parameter, or one number that all ranks have.
struct OptimizerTensor {
  std::string key{};    ///< name in `Optimizer::state`
  TensorShard shard{};  ///< under its name in a checkpoint, filled with zeros
};

/// Returns for each trained parameter the tensors that the optimizer may have. `shards` is the model's
/// `sharded_state_dict`.
[[nodiscard]] std::vector<std::vector<OptimizerTensor>> optimizer_tensors(Optimizer const& optimizer,
                                                                          std::vector<TensorShard> const& shards);

/// Throws `UsageError` if the optimizer has another model.
void require_optimizer_of(TrainableModel const& model, Optimizer const* optimizer, char const* operation);

/// Returns the number of elements before a shard's first row in the whole tensor.
[[nodiscard]] std::int64_t first_element(TensorShard const& shard);

}  // namespace crossrank::transforms
