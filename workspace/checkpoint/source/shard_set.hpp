#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/sidecar_file.hpp"

namespace crossrank::checkpoint {

/// The place of a shard in the grid of ranks.
struct ShardPlace {
  int tp = 0;   ///< tensor-parallel rank
  int pp = 0;   ///< pipeline stage
  int ep = 0;   ///< expert-parallel rank
  int moe = 0;  ///< group of experts, if groups are spread over the tensor-parallel ranks
  bool operator==(ShardPlace const&) const = default;
};

/// Names a tensor of a shard set.
struct TensorAt {
  std::uint32_t source = 0;
  std::uint32_t tensor = 0;
  bool operator==(TensorAt const&) const = default;
};

/// How the files of a set can be opened without the others.
enum class OpenedFrom : std::uint8_t {
  files,    ///< each file alone holds whole tensors of its source
  pieces,   ///< the files hold pieces of whole tensors: a distributed checkpoint
  together  ///< the tensors of a source need all of its files
};

/// All inputs of one checkpoint.
struct ShardSet {
  std::vector<std::shared_ptr<ShardSource const>> sources{};
  std::vector<ShardPlace> places{};  ///< one per source
  int tp = 1;                        ///< size of the grid
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;                              ///< number of expert groups spread over the tensor-parallel ranks
  FusedLayout fused = FusedLayout::automatic;  ///< layout of fused layers, if it is known
  Json config = Json::object();                ///< config.json; empty if there is none
  Json sizes = Json::object();                 ///< lengths under config.json's names, from params.json in its place
  Json quantization = Json::object();          ///< hf_quant_config.json or an equivalent; empty if there is none
  std::vector<SidecarFile> sidecars{};         ///< files to copy: tokenizer, generation config, ...
  std::vector<std::string> unreachable{};      ///< paths beside the weights that lead to no file
  std::vector<std::string> absent{};           ///< tensors that an index lists but no file has
  std::vector<FileStamp> files{};              ///< all opened files, as they were at that time
  OpenedFrom opened_from = OpenedFrom::together;
  bool saved_by_vllm = false;  ///< names of vLLM's `sharded_state`: fused layers are in vLLM's order
  bool known_whole = false;    ///< the files give the whole shape of each tensor, so that no rank can be missing
  bool uncounted = false;      ///< only the files themselves tell how many ranks there are

  /// Returns the JSON object that gives the lengths of the model.
  [[nodiscard]] Json const& lengths() const noexcept { return config.is_object() && !config.empty() ? config : sizes; }
  /// Returns whether these are pieces, so that nobody would notice that those of the last ranks are missing.
  [[nodiscard]] bool has_uncounted_pieces() const noexcept { return uncounted && opened_from == OpenedFrom::pieces; }
};

}  // namespace crossrank::checkpoint
