#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/sidecar_file.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Place of a shard in the grid of ranks.
struct ShardPlace {
  int tp = 0;   ///< tensor-parallel rank
  int pp = 0;   ///< pipeline stage
  int ep = 0;   ///< expert-parallel rank
  int moe = 0;  ///< group of experts that it holds, where groups are spread over the tensor-parallel ranks
  bool operator==(ShardPlace const&) const = default;
};

/// All inputs of one checkpoint.
struct ShardSet {
  std::vector<std::shared_ptr<ShardSource const>> sources{};
  std::vector<ShardPlace> places{};  ///< one per source
  int tp = 1;                        ///< size of the grid
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;                              ///< so many groups of experts are spread over the tensor-parallel ranks
  FusedLayout fused = FusedLayout::automatic;  ///< of fused layers, where something says it
  Json config = Json::object();                ///< config.json; empty where there is none
  Json quantization = Json::object();          ///< hf_quant_config.json or what stands in its place; empty for none
  std::vector<SidecarFile> sidecars{};         ///< files to carry over: tokenizer, generation config, ...
  std::vector<std::string> absent{};           ///< tensors that an index lists and no file has
  std::vector<FileStamp> files{};              ///< all that the sources read, as they were when they were opened
};

struct ShardSetOptions {
  int tp = 0;      ///< tensor-parallel size; 0: as names, config or the number of files say
  int pp = 0;      ///< pipeline size; 0 likewise
  int ep = 0;      ///< expert-parallel size; 0 likewise
  int moe_ep = 0;  ///< groups of experts among the tensor-parallel ranks; 0: as config and names say
  FusedLayout fused = FusedLayout::automatic;  ///< of fused layers
  std::string pattern{};  ///< file names with {tp}, {pp}, {ep} or {rank} in place of numbers; empty: known ones
  codec::CrcPolicy crc = codec::CrcPolicy::require;  ///< of torch archives
  std::string model_key{};  ///< of the dict in torch archives under which the model stands; empty: as known ones say
  std::vector<std::string> extra_globals{};  ///< names that their pickles may mention besides: "module.name"
};

/// The reader's word for it.
[[nodiscard]] codec::CrcPolicy crc_policy(ArchiveCrc crc);

/// Recognises what stands at `path`, a file or a directory, and opens all of it: safetensors, state images, torch
/// archives (by names, index, pattern, or one directory per rank), ModelOpt's files of ranks, distributed checkpoints,
/// Megatron's directories of ranks, DeepSpeed's ZeRO; also through the file that names the latest step.
///
/// Local; reads headers only. `IoError` for what is missing or refused, `FormatError` for damaged files and for parts
/// that do not belong together, `UsageError` when the grid cannot be told; each says what to do.
[[nodiscard]] ShardSet open_shard_set(std::filesystem::path const& path, ShardSetOptions const& options = {});

}  // namespace crossrank::checkpoint
