#pragma once
#include <filesystem>
#include <memory>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// What kind of distributed checkpoint (`torch.distributed.checkpoint`) a directory holds.
enum class DcpFlavour : std::uint8_t {
  none,
  torch,        ///< `.metadata` and `.distcp` files
  safetensors,  ///< safetensors files that say where in the whole their tensors belong
};

/// Looks at names, and at the header of the first safetensors file that has one. `IoError`.
[[nodiscard]] DcpFlavour find_dcp(std::filesystem::path const& directory);

struct DcpOptions {
  codec::CrcPolicy crc = codec::CrcPolicy::require;
  std::string model_key{};           ///< first parts of the names of the model; empty: as known ones say; ".": all
  std::shared_ptr<FilePool> pool{};  ///< of the descriptors; its own when there is none
};

/// Opens a distributed checkpoint: one source with all tensors whole, whatever the number of ranks that saved it.
///
/// Reads and checks what describes the data: each tensor is tiled exactly by its pieces, each piece lies inside its
/// file. `FormatError` otherwise, and for a directory that holds none; `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp(std::filesystem::path const& directory,
                                                          DcpOptions const& options = {});

}  // namespace crossrank::checkpoint
