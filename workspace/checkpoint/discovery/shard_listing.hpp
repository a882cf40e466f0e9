#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/codec/json/json_document.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// The files of one shard that is not yet opened.
struct ShardFiles {
  NamedShard shard{};
  std::vector<std::filesystem::path> files{};  ///< in order; state images: newest first
  bool images = false;                         ///< the files are state images of one rank; only the newest is read
};

/// The contents of one directory.
struct DirectoryListing {
  std::filesystem::path path{};
  std::vector<std::string> files{};        ///< regular files and links to them, sorted
  std::vector<std::string> directories{};  ///< sorted
  [[nodiscard]] bool has(std::string const& name) const;
};

/// Lists a directory. Throws `IoError` if it cannot be read; if it does not exist, the hint has the most similar path.
[[nodiscard]] DirectoryListing list_directory(std::filesystem::path const& path);

/// Formats of weight files, recognised by file names.
enum class WeightFormat : std::uint8_t {
  safetensors,  ///< ".safetensors"
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

/// Reads a JSON file. Returns nothing if it does not exist. Throws `FormatError` if it is not a JSON object or exceeds
/// a limit.
[[nodiscard]] std::optional<Json> read_json_object(std::filesystem::path const& path,
                                                   codec::JsonLimits const& limits = codec::description_limits);

}  // namespace crossrank::checkpoint
