#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// The files that DeepSpeed's ZeRO keeps for one model-parallel rank.
struct DeepSpeedFiles {
  std::vector<std::filesystem::path> model_states{};  ///< one, or one for each data-parallel rank (stage 3)
  std::vector<std::filesystem::path> optim_states{};  ///< one for each data-parallel rank, in order
};

/// Puts the 32-bit weights together that ZeRO (stage 1, 2 or 3) has flattened and cut over the data-parallel ranks.
/// Buffers and frozen parameters come as they are; tied parameters under all their names.
///
/// `FormatError` for sizes that do not come out even, and where the files do not describe the cuts; `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_deepspeed(DeepSpeedFiles const& files,
                                                                TorchSourceOptions const& options = {});

}  // namespace crossrank::checkpoint
