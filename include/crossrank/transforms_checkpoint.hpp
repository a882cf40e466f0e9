#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>

#include <crossrank/checkpoint.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/transforms_model.hpp>
#include <crossrank/transforms_optimizer.hpp>

/// Checkpoints of models in training. Link `crossrank::checkpoint`.
namespace crossrank {

/// Options of `save_checkpoint`. Only rank 0's `training_state`, `directory` and `config` count.
struct SaveCheckpointOptions {
  Optimizer const* optimizer = nullptr;           ///< optimizer of the model, saved as well; null: only the model
  Json training_state = nullptr;                  ///< what `load_checkpoint` returns, such as the place in the data
  std::filesystem::path directory{};              ///< directory with config.json, tokenizer and similar files to copy
  Json config = Json::object();                   ///< config of the model; an empty object: the one in `directory`
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< size limit of an output file; a larger tensor gets its own
  bool force = false;                             ///< replace an existing checkpoint
  std::function<void(checkpoint::Progress const&)> on_progress{};  ///< as in `checkpoint::ConsolidateOptions`
  std::stop_token stop{};                                          ///< stops with `CancelledError`
};

/// Saves a model that trains on all ranks of `group` as one Hugging Face checkpoint.
///
/// Collective; `group` holds all data-parallel ranks, as `JobCollective::dp_world`. The model is one that
/// `DDPTransform` or `FullyShardTransform` returned, or a model of one rank. The result does not depend on the number
/// of ranks:
/// - `model.safetensors`, or several files and an index, with whole parameters and buffers; `config.json` if there is
/// one
/// - `optimizer.safetensors`, or several files, with "optimizer.state.PARAMETER.KIND", where PyTorch names the kinds
/// - `training_state.json` with the name of the optimizer, its steps and its files, and `training_state`
///
/// Every byte is sent at most once, to the rank that writes its file. No rank holds more than 256 MiB beyond its own
/// shards. All files get their names together, as in `checkpoint::consolidate`: if a rank is killed at any step, the
/// disk is full or the job stops, `out` holds the old checkpoint, no checkpoint or the new one, never a mixture. The
/// next call completes or removes what a killed job has left.
///
/// Throws on all ranks: `UsageError` when the output exists or the optimizer has another model; `FormatError` when
/// replicas differ or `group` lacks ranks of the model; `CancelledError`, `IoError`, `PeerLostError` and `TimeoutError`
/// as `checkpoint::consolidate`.
CROSSRANK_EXPORT checkpoint::Summary save_checkpoint(Collective const& group, TrainableModel& model,
                                                     std::filesystem::path const& out,
                                                     SaveCheckpointOptions const& options = {});

/// Options of `load_checkpoint`.
struct LoadCheckpointOptions {
  Optimizer* optimizer = nullptr;  ///< optimizer of the model, gets the state that was saved; null: only the model
};

/// Loads a checkpoint of `save_checkpoint` into a model, for any number of ranks and either transform. Without an
/// optimizer, also any other Hugging Face checkpoint. Returns the `training_state` that was saved, or null.
///
/// Collective. Each rank reads only its own rows from the files. Parameters are rounded to the dtype of the model where
/// it differs. Names, shapes and dtypes are checked before anything changes; after `IoError` the values are
/// unspecified.
///
/// Throws on all ranks: `FormatError` names a tensor that is missing, is not in the model or has another shape, or the
/// optimizer that was saved; `UsageError` when the optimizer has another model; `IoError` for missing or unreadable
/// files.
CROSSRANK_EXPORT Json load_checkpoint(Collective const& group, TrainableModel& model, std::filesystem::path const& from,
                                      LoadCheckpointOptions const& options = {});

}  // namespace crossrank
