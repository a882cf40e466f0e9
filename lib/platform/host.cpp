#include "lib/platform/host.hpp"

#include <array>
#include <fstream>

#include <unistd.h>

#include "lib/core/as_size.hpp"

namespace crossrank::platform {

Host this_host() {
  Host host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host.id;
  std::array<char, 128> text{};
  if (auto const length = ::readlink("/proc/self/ns/net", text.data(), text.size()); length > 0)
    host.id.append("/").append(text.data(), as_size(length));
  if (::gethostname(text.data(), text.size() - 1) == 0) host.name = std::string(text.data());
  if (host.id.empty()) host.id = host.name;
  return host;
}

}  // namespace crossrank::platform
