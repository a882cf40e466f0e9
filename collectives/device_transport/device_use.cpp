#include "collectives/device_transport/device_use.hpp"

#include <cstddef>
#include <cstring>
#include <string>

#include <unistd.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"

namespace crossrank::device {
namespace {

/// A peer wrote the identity, so it may have no NUL.
std::string identity_of(DeviceUse const& use) {
  return {use.identity.data(), ::strnlen(use.identity.data(), use.identity.size())};
}

}  // namespace

DeviceUse device_use(Device device) noexcept {
  DeviceUse use{.index = device.index, .process = ::getpid()};
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

void refuse_borrowed_device(std::span<DeviceUse const> uses, spi::Transport const& transport) {
  auto const name = [](std::int32_t index) { return to_string(Device::cuda(index)); };
  for (std::size_t rank = 0; rank < uses.size(); ++rank) {
    auto const identity = identity_of(uses[rank]);
    if (uses[rank].is_default != 0 || identity.empty()) continue;
    for (std::size_t other = 0; other < uses.size(); ++other) {
      bool const elsewhere = uses[other].process != uses[rank].process;
      if (!elsewhere || identity_of(uses[other]) != identity) continue;
      throw UsageError(error_in(
          transport,
          {.operation = "make a communicator",
           .message =
               "rank " + std::to_string(rank) + " uses the GPU of rank " + std::to_string(other) + ", and not its own",
           .expected = "tensors on " + name(uses[rank].default_index),
           .got = "tensors on " + name(uses[rank].index) + ", " + identity,
           .hint = "put the tensors of that rank on its default_device(), or select the shared GPU on each rank "
                   "with set_default_device()",
           .failed_ranks = {static_cast<int>(rank)}}));
    }
  }
}

}  // namespace crossrank::device
