#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/codec/json/json_document.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// The files of one shard, before they are opened.
struct ShardFiles {
  NamedShard shard{};
  std::vector<std::filesystem::path> files{};  ///< in order; for a state image the candidates, the newest first
  bool images = false;                         ///< state images of which the highest that verifies counts
};

/// What stands in one directory.
struct DirectoryListing {
  std::filesystem::path path{};
  std::vector<std::string> files{};        ///< regular files and links to such, sorted
  std::vector<std::string> directories{};  ///< sorted
  [[nodiscard]] bool has(std::string const& name) const;
};

/// `IoError` when the directory cannot be read, with the name that was probably meant when there is none.
[[nodiscard]] DirectoryListing list_directory(std::filesystem::path const& path);

/// Files of one format that hold weights, as their names tell.
enum class WeightFormat : std::uint8_t {
  safetensors,  ///< ".safetensors"
  torch,        ///< ".pt", ".pth", ".bin", ".ckpt" of `torch.save`, without those of optimizers and schedulers
};

/// Groups the weights of a directory (or of one directory per rank) into shards. `FormatError` for a part
/// that is missing, `UsageError` when the names say nothing.
[[nodiscard]] std::vector<ShardFiles> find_shards(DirectoryListing const& listing, std::string const& pattern,
                                                  AnnouncedGrid const& announced);

/// The files that an index lists, which must all be there; nothing when the directory has none. `FormatError`.
[[nodiscard]] std::optional<std::vector<std::string>> files_of_index(DirectoryListing const& listing,
                                                                     WeightFormat family);

/// Names of the tensors in the index that `find_shards` goes by; none without one.
[[nodiscard]] std::vector<std::string> listed_tensors(DirectoryListing const& listing);

/// Reads a JSON file; nothing when there is no such file. `FormatError` when it is no JSON object or passes a limit.
[[nodiscard]] std::optional<Json> read_json_object(std::filesystem::path const& path,
                                                   codec::JsonLimits const& limits = codec::description_limits);

}  // namespace crossrank::checkpoint
