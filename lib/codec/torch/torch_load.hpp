#pragma once
#include <span>

#include <crossrank/state.hpp>

#include "lib/codec/torch/torch_tree.hpp"

namespace crossrank::codec {

/// Reads tensors into memory. Tensors that share a storage in the archive share it in memory. `FormatError` also when
/// the tensors would be many times as large as the file.
[[nodiscard]] StateDict load_tensors(TorchArchive const& archive, std::span<NamedTorchTensor const> tensors);

}  // namespace crossrank::codec
