#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {

/// The files of one shard that is not yet opened.
struct ShardFiles {
  NamedShard shard{};
  std::vector<std::filesystem::path> files{};  ///< in order; state images: newest first
  std::vector<std::string> listed{};           ///< tensors of the index of these files, if they have one
  bool images = false;                         ///< the files are state images of one rank; only the newest is read
};

/// Formats of weight files, recognized by file names.
enum class WeightFormat : std::uint8_t {
  safetensors,  ///< ".safetensors", except optimizer states
  torch,        ///< ".pt", ".pth", ".bin", ".ckpt" of `torch.save`, except optimizer and scheduler states
};

/// Groups the weight files of a directory, or of one directory per rank, into shards. Reads each index once. Ignores an
/// index of other files if all weight files have a rank in their names: vLLM copies the index of the model that it has
/// sharded.
///
/// Throws `FormatError` if a part is missing, if the index is damaged or lists a file that is missing, or if the names
/// do not give the ranks. Throws `IoError` if the index or a weight file is a link to nothing, and `FormatError` if it
/// is a device or a pipe.
[[nodiscard]] std::vector<ShardFiles> find_shards(DirectoryListing const& listing, std::string const& pattern,
                                                  AnnouncedGrid const& announced);

/// Returns the tensors that the index of one format lists, whatever files it names; nothing without an index. Throws
/// `FormatError` if the index is damaged.
[[nodiscard]] std::vector<std::string> listed_tensors(DirectoryListing const& listing, WeightFormat family);

}  // namespace crossrank::checkpoint
