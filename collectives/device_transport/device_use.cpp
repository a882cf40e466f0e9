#include "collectives/device_transport/device_use.hpp"

#include <cstddef>
#include <cstring>
#include <string>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"

namespace crossrank::device {
namespace {

/// A peer wrote the identity, so it may have no NUL.
std::string identity_of(DeviceUse const& use) {
  return {use.identity.data(), ::strnlen(use.identity.data(), use.identity.size())};
}

}  // namespace

DeviceUse device_use(Device device) noexcept {
  DeviceUse use{.index = device.index};
  try {
    auto const own = default_device();
    use.default_index = own.index;
    use.is_default = own == device ? 1 : 0;
    if (device.kind == Device::Kind::cuda)
      cuda::device_info(device).uuid.copy(use.identity.data(), use.identity.size() - 1);
  } catch (Error const&) {  // a device that cannot be opened: the call itself says so
  }
  return use;
}

void warn_of_borrowed_device(std::span<DeviceUse const> uses, spi::Transport const& transport) {
  auto const& mine = uses[as_size(transport.rank())];
  auto const identity = identity_of(mine);
  if (mine.is_default != 0 || identity.empty()) return;
  for (std::size_t other = 0; other < uses.size(); ++other) {
    if (other == as_size(transport.rank()) || identity_of(uses[other]) != identity) continue;
    auto const name = [](std::int32_t index) { return to_string(Device::cuda(index)); };
    return log_event(LogLevel::warning, "a rank uses the GPU of another rank, and not its own",
                     {{"group", transport.name()},
                      {"rank", std::to_string(transport.rank())},
                      {"other rank", std::to_string(other)},
                      {"used", name(mine.index) + ", " + identity},
                      {"own", name(mine.default_index)},
                      {"hint", "put the tensors on default_device()"}});
  }
}

}  // namespace crossrank::device
