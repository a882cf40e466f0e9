#pragma once
#include <filesystem>
#include <set>
#include <string>

#include <crossrank/crossrank.hpp>

#include "llama_sharding.hpp"
#include "source_model.hpp"

namespace tp_export {

/// Writes model.safetensors and copies config.json and the tokenizer files of the source. Returns the paths it has
/// written.
std::set<std::filesystem::path> write_checkpoint(std::filesystem::path const& directory, xr::StateDict const& weights,
                                                 SourceModel const& source);

/// Compares weights with their source. Returns the first difference, or an empty text when dtype, shape and every bit
/// of every tensor are equal. Compares a tied output layer with the embedding. Calls `world.keep_alive()` in between,
/// because the other ranks wait.
[[nodiscard]] std::string compare(xr::StateDict const& weights, SourceModel const& source, LlamaSharding const& plan,
                                  xr::Collective const& world);

}  // namespace tp_export
