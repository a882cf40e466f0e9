#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Options of `open_shard_set`.
struct ShardSetOptions {
  int tp = 0;      ///< tensor-parallel size; 0: from names, config or the number of files
  int pp = 0;      ///< pipeline size; 0: likewise
  int ep = 0;      ///< expert-parallel size; 0: likewise
  int moe_ep = 0;  ///< groups of experts among the tensor-parallel ranks; 0: from config and names
  FusedLayout fused = FusedLayout::automatic;  ///< layout of fused layers
  std::string pattern{};  ///< file name with {tp}, {pp}, {ep} or {rank} in place of numbers; empty: known names
  codec::CrcPolicy crc = codec::CrcPolicy::require;  ///< what to do with checksums of torch archives
  std::string model_key{};                           ///< dotted path to the model in torch archives; empty: a known key
  std::vector<std::string> extra_globals{};          ///< more names that pickles may mention: "module.name"
};

/// Returns the archive reader's value for `crc`.
[[nodiscard]] codec::CrcPolicy crc_policy(ArchiveCrc crc);

/// Returns the options of a plan that concern its inputs.
[[nodiscard]] ShardSetOptions shard_set_options(PlanOptions const& options);

/// Recognizes the checkpoint at `path`, a file or a directory, and opens all of its shards.
///
/// Supports safetensors, state images, torch archives (by names, index, pattern, or one directory per rank), rank files
/// of ModelOpt, distributed checkpoints, Megatron's rank directories and DeepSpeed's ZeRO files. Follows a file that
/// names the latest step.
///
/// Local; reads only headers. Throws `IoError` for missing or unreadable files, `FormatError` for damaged files and
/// files of different checkpoints, and `UsageError` if the grid cannot be determined. Each error has a hint.
[[nodiscard]] ShardSet open_shard_set(std::filesystem::path const& path, ShardSetOptions const& options = {});

}  // namespace crossrank::checkpoint
