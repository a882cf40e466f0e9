#pragma once
#include <filesystem>
#include <set>
#include <string>

#include <crossrank/crossrank.hpp>

#include "examples/tp_export/llama_sharding.hpp"
#include "examples/tp_export/source_model.hpp"

namespace tp_export {

/// Writes model.safetensors and copies config.json, and what else the source has for its tokenizer. Returns what it
/// wrote.
std::set<std::filesystem::path> write_checkpoint(std::filesystem::path const& directory, xr::StateDict const& weights,
                                                 SourceModel const& source);

/// Where weights differ from their source, or nothing when dtype, shape and every bit of every tensor are the same. A
/// tied output layer is compared with the embedding that stands for it. Tells `world` in between that this rank is at
/// work.
[[nodiscard]] std::string compare(xr::StateDict const& weights, SourceModel const& source, LlamaSharding const& plan,
                                  xr::Collective const& world);

}  // namespace tp_export
