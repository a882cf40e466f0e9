#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The kinds of distributed checkpoints (`torch.distributed.checkpoint`).
enum class DcpFlavour : std::uint8_t {
  none,
  torch,        ///< `.metadata` and `.distcp` files
  safetensors,  ///< safetensors files with the offsets of their tensors in the whole tensors
};

/// Returns which kind of distributed checkpoint a directory holds, from file names and the header of the first readable
/// safetensors file. Throws `IoError`.
[[nodiscard]] DcpFlavour find_dcp(std::filesystem::path const& directory);

/// Options of `open_dcp`.
struct DcpOptions {
  codec::CrcPolicy crc = codec::CrcPolicy::require;
  std::string model_key{};  ///< first part of the model's tensor names; empty: a known key; ".": everything
  std::vector<std::string> extra_globals{};  ///< more names that the archive of the training arguments may mention
  std::shared_ptr<FilePool> pool{};          ///< pool of the open files; null: a new one
  /// Selects tensors. The source has only these, without other objects, and opens no other files. Empty: everything.
  std::function<bool(std::string const& tensor)> wants{};
};

/// Opens a distributed checkpoint as one source with whole tensors, independent of the number of ranks that saved it.
/// The tensors of Megatron-core's `torch_dist` have the names of its modules, one for each layer and expert.
///
/// Checks the descriptions of the data: the pieces of each tensor must tile it, and each piece must be inside its file.
/// Throws `FormatError` otherwise and if the directory holds no distributed checkpoint, and `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp(std::filesystem::path const& directory,
                                                          DcpOptions const& options = {});

/// The name of the file that describes a distributed checkpoint of flavour torch.
inline constexpr char const* dcp_metadata_name = ".metadata";

/// Opens some tensors of a distributed checkpoint from the files that hold them; `.metadata` is one of them if the
/// checkpoint has it. `options.wants` must select the tensors. Errors as for `open_dcp`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp_files(std::vector<std::filesystem::path> const& files,
                                                                DcpOptions const& options);

}  // namespace crossrank::checkpoint
