#pragma once
#include <filesystem>
#include <string>

namespace crossrank::workspace {

/// How the file system that holds `path` is mounted, for people: "nfs4 server:/export on /data (rw,vers=4.2,...)".
/// "unknown mount" where the kernel does not say. Never throws for what it cannot find out.
[[nodiscard]] std::string mount_text(std::filesystem::path const& path);

}  // namespace crossrank::workspace
