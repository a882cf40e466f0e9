#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>

#include <crossrank/checkpoint.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/transforms/model.hpp>
#include <crossrank/transforms/optimizer.hpp>

/// Checkpoints of models in training. Link `crossrank::checkpoint`.
namespace crossrank {

/// Selects the files of a checkpoint of a model in training.
enum class CheckpointFormat : std::uint8_t {
  hugging_face,  ///< whole tensors in safetensors files; the result does not depend on the number of ranks
  dcp,           ///< each rank's own rows in one file, as `torch.distributed.checkpoint` saves and loads them
};

/// Options of `save_checkpoint`. Only rank 0's `training_state`, `directory` and `config` count. All ranks pass an
/// optimizer of the same kind with the same number of steps, or none does.
struct SaveCheckpointOptions {
  Optimizer const* optimizer = nullptr;  ///< optimizer of the model, saved as well; null: only the model
  /// What `load_checkpoint` returns, such as the place in the data: at most 128 MiB as JSON, about 8 million values
  /// and 126 levels.
  Json training_state = nullptr;
  std::filesystem::path directory{};  ///< directory with config.json, tokenizer and similar files to copy
  Json config = Json::object();       ///< config of the model; an empty object: the one in `directory`
  CheckpointFormat format = CheckpointFormat::hugging_face;  ///< the same on all ranks
  /// Size limit of an output file; a larger tensor gets its own. Not for `CheckpointFormat::dcp`.
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool force = false;                                              ///< replace an existing checkpoint
  std::function<void(checkpoint::Progress const&)> on_progress{};  ///< as in `checkpoint::ConsolidateOptions`
  std::stop_token stop{};                                          ///< stops with `CancelledError`
};

/// Saves a model that trains on all ranks of `group` as one checkpoint.
///
/// Collective; `group` holds all data-parallel ranks, as `JobCollective::dp_world`. The model is one that
/// `DDPTransform` or `FullyShardTransform` returned, or a model of one rank.
///
/// `CheckpointFormat::hugging_face` writes files that do not depend on the number of ranks:
/// - `model.safetensors`, or several files and an index, with whole parameters and buffers
/// - `config.json` if there is one
/// - `optimizer.safetensors`, or several files, with "optimizer.state.PARAMETER.KIND"; the kinds have PyTorch's names
/// - `training_state.json` with the name of the optimizer, its steps and its files, and `training_state`
///
/// `CheckpointFormat::dcp` writes files that torch 2.4 and later loads with `torch.distributed.checkpoint.load`:
/// - `__R_0.distcp` for each rank R, with the rows that the rank holds, under "model.PARAMETER" and
///   "optim.state.PARAMETER.KIND". If several ranks hold the same rows, one of them writes each item. Every item has a
///   CRC-32 checksum. The file of rank 0 also has the settings of the optimizer, under "optim.param_groups.0".
/// - `.metadata`, which says where the items are
/// - `config.json` if there is one, and `training_state.json`
///
/// Every byte is sent at most once, to the rank that writes its file. In the format `dcp` no byte is sent. A rank
/// needs as much memory as `checkpoint::consolidate` of weights in memory. All files get their names together, as in
/// `checkpoint::consolidate`: if a rank is killed at any step, the disk is full or the job stops, `out` holds the old
/// checkpoint or the new one. A job that is killed in the middle of the renames leaves parts of both, which
/// `load_checkpoint`, `has_checkpoint` and the next call complete to the new one, and all other readers refuse.
///
/// Buffers are those of rank 0, because statistics of the ranks' own batches differ.
///
/// Throws on all ranks: `UsageError` when the output exists, when the optimizer has another model, when the model has
/// no parameters, or when torch lacks the dtype of a tensor; `MismatchError` when ranks pass other formats or
/// optimizers; `FormatError` when replicas differ or `group` lacks ranks of the model; `CancelledError`, `IoError`,
/// `PeerLostError` and `TimeoutError` as `checkpoint::consolidate`.
CROSSRANK_EXPORT checkpoint::Summary save_checkpoint(Collective const& group, TrainableModel& model,
                                                     std::filesystem::path const& out,
                                                     SaveCheckpointOptions const& options = {});

/// Returns whether `path` has a checkpoint of `save_checkpoint`. All ranks return what rank 0 finds. Completes the
/// commit of a job that was killed in the middle of it. Collective.
///
/// Throws on all ranks: `IoError` if the directory cannot be read or the commit cannot be completed; `FormatError` if
/// another job is committing.
CROSSRANK_EXPORT bool has_checkpoint(Collective const& group, std::filesystem::path const& path);

/// Options of `load_checkpoint`.
struct LoadCheckpointOptions {
  Optimizer* optimizer = nullptr;  ///< optimizer of the model, gets the state that was saved; null: only the model
};

/// Loads a checkpoint of `save_checkpoint` in either format into a model, for any number of ranks and either transform.
/// Without an optimizer, it also loads any other Hugging Face or distributed checkpoint. Returns the `training_state`
/// that was saved, or null.
///
/// Collective. Rank 0 completes the commit of a job that was killed in the middle of it. Each rank reads only its own
/// rows from the files. From a distributed checkpoint it reads whole items that have some of these rows, to check their
/// CRCs. Parameters are rounded if the model has another dtype. Names, shapes and dtypes are checked before anything
/// changes. After an `IoError` the values are unspecified.
///
/// Throws on all ranks: `FormatError` names a tensor that is missing, is not in the model or has another shape, or the
/// optimizer that was saved; `UsageError` when the optimizer has another model; `IoError` for missing or unreadable
/// files.
CROSSRANK_EXPORT Json load_checkpoint(Collective const& group, TrainableModel& model, std::filesystem::path const& from,
                                      LoadCheckpointOptions const& options = {});

}  // namespace crossrank
