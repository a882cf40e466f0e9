#pragma once
#include <filesystem>
#include <string>

#include <crossrank/spi/plugin.hpp>

namespace crossrank {

/// Returns whether the plugin of a backend is in the folder of this library.
[[nodiscard]] bool has_plugin(std::string const& backend);

/// Loads the plugin of a backend, `libcrossrank_<backend>.so`, from the folder of this library only. Never unloads it.
/// Throws `UnavailableError` that names the file and the problem.
[[nodiscard]] spi::Plugin const& load_plugin(std::string const& backend);
/// Loads the plugin from the given folder.
[[nodiscard]] spi::Plugin const& load_plugin(std::string const& backend, std::filesystem::path const& folder);

}  // namespace crossrank
