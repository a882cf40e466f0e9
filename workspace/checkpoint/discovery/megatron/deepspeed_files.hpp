#pragma once
#include <map>

#include "workspace/checkpoint/source/torch/deepspeed_source.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"

namespace crossrank::checkpoint {

/// The files of ZeRO in a directory, for each model-parallel rank; empty where there are none.
///
/// `FormatError` when those of a rank are missing, and for experts, which ZeRO keeps in another way.
[[nodiscard]] std::map<int, DeepSpeedFiles> find_deepspeed(DirectoryListing const& listing);

/// Refuses DeepSpeed's universal checkpoints, which look like a Megatron rank beside a folder. `FormatError`.
void require_no_universal(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
