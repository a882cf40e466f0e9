#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// What DeepSpeed saves of a model with experts for one model-parallel rank: the model without them, and a file for
/// each expert of each layer. All in the precision of the training; the 32-bit copies of experts in optimizer states
/// are cut over groups of which no file tells.
struct ExpertStates {
  std::filesystem::path model{};
  std::vector<std::filesystem::path> experts{};
  std::vector<std::string> left_out{};  ///< names of files with states of the optimizer
};

/// By model-parallel rank; empty where there are no files of experts. `FormatError` where one is missing, and for
/// ZeRO-3, which cuts the model itself.
[[nodiscard]] std::map<int, ExpertStates> find_expert_states(DirectoryListing const& listing);

/// All of it as one source. `IoError`, `FormatError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_expert_states(ExpertStates const& states,
                                                                    TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
