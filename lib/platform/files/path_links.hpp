#pragma once
#include <filesystem>
#include <string>

namespace crossrank::platform {

/// Refuses a path that leads through another user's symbolic link.
///
/// Walks the parts of `path`, an existing directory. A symbolic link may belong to root, to this process's user, or to
/// the owner of its target directory. A link of another user could redirect this process into a directory that the
/// other user cannot write. `IoError` that names such a link. Returns whether the walk ends at the descriptor
/// `directory`; if not, the path has changed since the descriptor was opened.
[[nodiscard]] bool check_links(std::filesystem::path const& path, int directory, std::string const& operation);

/// Checks the existing part of `path` in the same way, before the rest is created.
void check_links_above(std::filesystem::path const& path, std::string const& operation);

}  // namespace crossrank::platform
