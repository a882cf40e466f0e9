#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// The files of one model-parallel rank in a DeepSpeed ZeRO checkpoint.
struct DeepSpeedFiles {
  std::vector<std::filesystem::path> model_states{};  ///< one file, or one per data-parallel rank (stage 3)
  std::vector<std::filesystem::path> optim_states{};  ///< one file per data-parallel rank, in order
};

/// Reassembles the 32-bit weights that ZeRO (stage 1, 2 or 3) has flattened and split over the data-parallel ranks.
/// Also has buffers and frozen parameters in their own dtypes, and tied parameters under all their names.
///
/// Throws `FormatError` if sizes do not match or the files do not describe the slices, and `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_deepspeed(DeepSpeedFiles const& files,
                                                                TorchSourceOptions const& options = {});

}  // namespace crossrank::checkpoint
