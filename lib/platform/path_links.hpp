#pragma once
#include <filesystem>
#include <string>

namespace crossrank::platform {

/// Refuses a path that somebody else has led astray.
///
/// Walks the parts of `path`, which is a directory that exists. A symbolic link may be followed when it belongs to
/// root, to ourselves, or to the owner of the directory that it leads to. Anybody else's link could lead root, or us,
/// into a directory that its owner may not write. `IoError` that names the link. Returns whether the walk ends at
/// `directory`, a descriptor: when it does not, the path has changed since that one was opened.
[[nodiscard]] bool check_links(std::filesystem::path const& path, int directory, std::string const& operation);

/// The same for the part of `path` that exists, before the rest is made.
void check_links_above(std::filesystem::path const& path, std::string const& operation);

}  // namespace crossrank::platform
