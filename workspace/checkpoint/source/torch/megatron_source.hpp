#pragma once
#include <filesystem>
#include <memory>

#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Opens what Megatron-LM or DeepSpeed without ZeRO keep for one model-parallel rank (`model_optim_rng.pt`,
/// `mp_rank_00_model_states.pt`): the tensors of "model" or "module", named from there on. Training arguments and plain
/// values are `attributes()`; optimizer states are left out, and so are transformer-engine's own ("_extra_state"),
/// which "left_out" names.
///
/// `FormatError`, also for stages that were interleaved, as their layers are numbered in each part anew.
[[nodiscard]] std::shared_ptr<TorchSource const> open_megatron_rank(std::filesystem::path const& path,
                                                                    TorchSourceOptions const& options = {});

}  // namespace crossrank::checkpoint
