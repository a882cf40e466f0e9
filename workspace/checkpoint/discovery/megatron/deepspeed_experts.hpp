#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// The files that DeepSpeed saves for one model-parallel rank of a model with experts: one file for the layers outside
/// the experts, and one file for each expert of each layer.
///
/// All weights have the precision of the training. The 32-bit copies of experts in optimizer states are not used,
/// because no file tells over which groups they are partitioned.
struct ExpertStates {
  std::filesystem::path model{};
  std::vector<std::filesystem::path> experts{};
  std::vector<std::string> left_out{};  ///< names of files with optimizer states
};

/// Returns the files of each model-parallel rank; empty if there are no expert files. Throws `FormatError` if a file is
/// missing, and for ZeRO-3, which partitions the model itself.
[[nodiscard]] std::map<int, ExpertStates> find_expert_states(DirectoryListing const& listing);

/// Opens all files of a rank as one source. Throws `IoError` or `FormatError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_expert_states(ExpertStates const& states,
                                                                    TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
