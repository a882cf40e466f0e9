#pragma once
#include <map>

#include "workspace/checkpoint/source/torch/deepspeed_source.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {

/// Returns the ZeRO files in a directory for each model-parallel rank; empty if there are none.
///
/// Throws `FormatError` if files of a rank are missing, and for expert states, which need `find_expert_states`.
[[nodiscard]] std::map<int, DeepSpeedFiles> find_deepspeed(DirectoryListing const& listing);

/// Throws `FormatError` for DeepSpeed's universal checkpoints, which look like a Megatron rank beside a folder.
void require_no_universal(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
