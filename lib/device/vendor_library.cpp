#include "lib/device/vendor_library.hpp"

#include <utility>
#include <vector>

#include <dlfcn.h>
#include <link.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

std::string last_error() {
  auto const* const text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

std::string path_of(void* handle, std::string otherwise) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr || *map->l_name == '\0')
    return otherwise;
  return map->l_name;
}

}  // namespace

VendorLibrary::VendorLibrary(VendorLibraryRequest const& request) {
  std::vector<std::string> tried;
  if (!request.chosen.empty()) {
    handle_ = ::dlopen(request.chosen.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) tried.push_back(std::string(request.setting) + "=" + request.chosen + ": " + last_error());
  } else {
    handle_ = ::dlopen(request.name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle_ == nullptr) {
      tried.push_back(std::string(request.name) + ": this process has not loaded it");
      static_cast<void>(::dlerror());
      if (!request.preferred.empty()) handle_ = ::dlopen(request.preferred.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ == nullptr && !request.preferred.empty()) tried.push_back(last_error());
      if (handle_ == nullptr) handle_ = ::dlopen(request.name, RTLD_NOW | RTLD_LOCAL);
      if (handle_ == nullptr) tried.push_back("the system's library: " + last_error());
    }
  }
  if (handle_ == nullptr) {
    auto system = tried.back();
    throw UnavailableError(
        {.operation = std::string("load ") + request.what,
         .message = "the library cannot be opened",
         .resource = request.name,
         .system = std::move(system),
         .hint = std::string(request.installation) + ", or set " + request.setting + " to the path of the library",
         .details = std::move(tried)});
  }
  path_ = path_of(handle_, request.chosen.empty() ? request.name : request.chosen);
}

void* VendorLibrary::find(char const* symbol) const noexcept { return ::dlsym(handle_, symbol); }

}  // namespace crossrank
