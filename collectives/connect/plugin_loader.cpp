#include "collectives/connect/plugin_loader.hpp"

#include <cstring>
#include <utility>

#include <dlfcn.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

void own_address() {}

std::filesystem::path own_folder() {
  Dl_info found{};
  if (::dladdr(reinterpret_cast<void*>(&own_address), &found) == 0 || found.dli_fname == nullptr) return {};
  std::error_code failed;
  auto const file = std::filesystem::canonical(found.dli_fname, failed);
  return failed ? std::filesystem::path() : file.parent_path();
}

std::filesystem::path file_of(std::string const& backend, std::filesystem::path const& folder) {
  return folder / ("libcrossrank_" + backend + ".so");
}

[[noreturn]] void refuse(std::filesystem::path const& file, std::string message, std::string system, std::string hint) {
  throw UnavailableError({.operation = "load a backend",
                          .message = std::move(message),
                          .resource = file.string(),
                          .system = std::move(system),
                          .hint = std::move(hint)});
}

}  // namespace

bool has_plugin(std::string const& backend) {
  std::error_code failed;
  return backend.find('/') == std::string::npos && std::filesystem::exists(file_of(backend, own_folder()), failed);
}

spi::Plugin const& load_plugin(std::string const& backend) { return load_plugin(backend, own_folder()); }

spi::Plugin const& load_plugin(std::string const& backend, std::filesystem::path const& folder) {
  auto const file = file_of(backend, folder);
  std::error_code failed;
  if (!std::filesystem::exists(file, failed)) {
    refuse(file, "the plugin of backend \"" + backend + "\" is missing", {},
           "build crossrank where " + backend + " is installed, and install the plugin beside the library");
  }
  auto* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    auto const* const why = ::dlerror();
    refuse(file, "the plugin cannot be loaded", why == nullptr ? "" : why, "install the libraries that it needs");
  }
  auto const entry = reinterpret_cast<spi::PluginEntry>(::dlsym(handle, spi::plugin_entry_name));
  if (entry == nullptr)
    refuse(file, "this is not a plugin of crossrank", {}, "install the plugin that was built with this library");
  auto const* const plugin = entry();
  if (std::strcmp(plugin->stamp, spi::build_stamp) != 0) {
    refuse(file,
           "the plugin comes from another build: " + std::string(plugin->stamp) + ", and this library is " +
               spi::build_stamp,
           {}, "install the library and the plugin from the same build");
  }
  return *plugin;
}

}  // namespace crossrank
