#pragma once
#include <filesystem>
#include <string>

#include <crossrank/spi/plugin.hpp>

namespace crossrank {

/// The plugin of a backend: "libcrossrank_<backend>.so" in the folder of this library, nowhere else. Once opened it is
/// never closed. `UnavailableError` says which file, and what is wrong with it.
[[nodiscard]] spi::Plugin const& load_plugin(std::string const& backend);
/// The same from a given folder.
[[nodiscard]] spi::Plugin const& load_plugin(std::string const& backend, std::filesystem::path const& folder);

}  // namespace crossrank
