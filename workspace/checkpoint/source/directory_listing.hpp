#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/json/json_document.hpp"

namespace crossrank::checkpoint {

/// The contents of one directory.
struct DirectoryListing {
  std::filesystem::path path{};
  std::vector<std::string> files{};        ///< regular files and links to them, sorted
  std::vector<std::string> directories{};  ///< sorted
  std::vector<std::string> unreachable{};  ///< links to nothing, devices, pipes, and what cannot be examined; sorted
  [[nodiscard]] bool has(std::string const& name) const;
};

/// Returns whether there is a directory at the path. `IoError` if the path cannot be examined.
[[nodiscard]] bool has_directory(std::filesystem::path const& path);

/// Lists a directory. Throws `IoError` if it cannot be read; if it does not exist, the hint has the most similar path.
[[nodiscard]] DirectoryListing list_directory(std::filesystem::path const& path);

/// Throws the `FormatError` of a directory whose files do not form a checkpoint.
[[noreturn]] void refuse_listing(DirectoryListing const& listing, std::string message, std::string got,
                                 std::string hint);

/// Throws the error of a name in `unreachable`: `FormatError` for a device or pipe, else `IoError`.
[[noreturn]] void refuse_unreachable(std::filesystem::path const& path);

/// Reads a JSON file. Returns nothing if it does not exist. Throws `FormatError` if it is not a JSON object or exceeds
/// a limit, and `IoError` if it cannot be read.
[[nodiscard]] std::optional<Json> read_json_object(std::filesystem::path const& path,
                                                   codec::JsonLimits const& limits = codec::description_limits,
                                                   codec::RepeatedKey repeated_key = codec::RepeatedKey::last_counts);

}  // namespace crossrank::checkpoint
