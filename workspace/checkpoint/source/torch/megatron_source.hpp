#pragma once
#include <filesystem>
#include <memory>

#include <crossrank/json.hpp>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Opens the file of one model-parallel rank of Megatron-LM or of DeepSpeed without ZeRO (`model_optim_rng.pt`,
/// `mp_rank_00_model_states.pt`).
///
/// The tensors are those under "model" or "module", without that prefix. The layers of interleaved stages get their
/// numbers in the whole model. `attributes()` has training arguments and plain values; "left_out" in it names the
/// states of transformer-engine ("_extra_state"), which are left out like optimizer states.
///
/// Throws `IoError`, or `FormatError`, also if layers of interleaved stages cannot be numbered.
[[nodiscard]] std::shared_ptr<TorchSource const> open_megatron_rank(std::filesystem::path const& path,
                                                                    TorchSourceOptions const& options = {});

/// Returns the training arguments, the iteration and other plain values of Megatron in the dict `root` of an archive.
[[nodiscard]] Json megatron_values(codec::TorchArchive const& archive, codec::PickleValue root);

}  // namespace crossrank::checkpoint
