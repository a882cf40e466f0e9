#pragma once
#include <cstdint>
#include <filesystem>

namespace tp_export {

enum class ModelSize : std::uint8_t {
  normal,  ///< 128 MiB
  small,   ///< 230 KiB
};

/// Writes a Llama with tied embeddings as config.json and model.safetensors. Its bfloat16 weights depend only on their
/// names.
void make_model(std::filesystem::path const& directory, ModelSize size);

}  // namespace tp_export
