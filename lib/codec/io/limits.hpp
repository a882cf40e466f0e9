#pragma once
#include <cstddef>
#include <cstdint>

namespace crossrank::codec {

/// Longest name of a tensor, in bytes of UTF-8.
inline constexpr std::size_t max_name_bytes = 1024;
/// Longest config in its text form.
inline constexpr std::size_t max_config_bytes = std::size_t{16} << 20;
/// Deepest nesting of a config.
inline constexpr std::size_t max_config_depth = 32;
/// Most values in a config.
inline constexpr std::size_t max_config_nodes = 1'000'000;
/// Longest header that the safetensors format allows.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
/// Most entries of a safetensors file's metadata.
inline constexpr std::size_t max_metadata_entries = 1'000'000;
/// Most tensors in a file.
inline constexpr std::size_t max_tensors = 1'000'000;

}  // namespace crossrank::codec
