#pragma once
#include <filesystem>
#include <string>

namespace crossrank::workspace {

/// Describes how the file system that holds `path` is mounted, for error messages: "nfs4 server:/export on /data
/// (rw,vers=4.2,...)". Returns "unknown mount" when the kernel does not report it. Never throws.
[[nodiscard]] std::string mount_text(std::filesystem::path const& path);

}  // namespace crossrank::workspace
