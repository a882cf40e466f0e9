#pragma once
#include <filesystem>
#include <vector>

#include <crossrank/checkpoint.hpp>

/// Checks of files that are no part of the model's tensors.
namespace crossrank::checkpoint {

/// Checks the state of a training, as `save_checkpoint` writes it beside a model: `training_state.json`, and that the
/// files of the optimizer exist. Finds nothing in a directory without that file. Throws `IoError`.
[[nodiscard]] std::vector<Defect> check_training_state(std::filesystem::path const& directory);

/// Reports weights in files "x of y" without an index. Loaders of Hugging Face do not find such files. Throws
/// `IoError`.
[[nodiscard]] std::vector<Defect> check_index_exists(std::filesystem::path const& directory);

}  // namespace crossrank::checkpoint
