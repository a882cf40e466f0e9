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
  bool images = false;                         ///< the files are state images of one rank; only the newest is read
};

/// Formats of weight files, recognised by file names.
enum class WeightFormat : std::uint8_t {
  safetensors,  ///< ".safetensors", except optimizer states
  torch,        ///< ".pt", ".pth", ".bin", ".ckpt" of `torch.save`, except optimizer and scheduler states
};

/// Groups the weight files of a directory, or of one directory per rank, into shards.
///
/// Throws `FormatError` if a part is missing or the names do not give the ranks.
[[nodiscard]] std::vector<ShardFiles> find_shards(DirectoryListing const& listing, std::string const& pattern,
                                                  AnnouncedGrid const& announced);

/// Returns the files that the index of a directory lists, or nothing if there is no index. Throws `FormatError` if a
/// listed file is missing or the index is damaged.
[[nodiscard]] std::optional<std::vector<std::string>> files_of_index(DirectoryListing const& listing,
                                                                     WeightFormat family);

/// Returns the names of the tensors in the index that `find_shards` uses; empty without an index.
[[nodiscard]] std::vector<std::string> listed_tensors(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
