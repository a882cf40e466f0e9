#include "collectives/device_transport/device_transports.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/nccl/nccl_transport.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank {
namespace device {
namespace {

constexpr std::size_t max_name_length = 23;

using Factories = std::vector<std::shared_ptr<spi::DeviceTransportFactory>>;

/// The factories that this process has added, and NCCL at the end.
struct AllFactories {
  std::mutex mutex{};
  Factories preferred_first{};
};

AllFactories& all_factories() {
  static NoDestructor<AllFactories> all;  // groups may outlive statics
  return all.value;
}

/// Needs the mutex.
Factories& with_nccl(AllFactories& all) {
  if (all.preferred_first.empty()) {
    // The library owns its own factory, which never ends.
    all.preferred_first.push_back({std::shared_ptr<void>(), &nccl::transport_factory()});
  }
  return all.preferred_first;
}

[[noreturn]] void refuse_factory(std::string message, std::string got) {
  throw UsageError({.operation = "add_device_transport", .message = std::move(message), .got = std::move(got)});
}

}  // namespace

Factories device_transports(Device::Kind kind) {
  auto& all = all_factories();
  std::lock_guard const lock(all.mutex);
  Factories serving;
  for (auto const& factory : with_nccl(all)) {
    if (factory->serves(kind)) serving.push_back(factory);
  }
  return serving;
}

}  // namespace device

void spi::add_device_transport(std::shared_ptr<DeviceTransportFactory> factory) {
  if (!factory) device::refuse_factory("there is no factory", "null");
  auto const name = factory->name();
  auto const has_length = [](std::string_view text) { return !text.empty() && text.size() <= device::max_name_length; };
  if (!has_length(name) || !has_length(factory->title())) {
    device::refuse_factory(
        "names of device transports have 1 to " + std::to_string(device::max_name_length) + " characters",
        "\"" + std::string(name) + "\", \"" + std::string(factory->title()) + "\"");
  }
  auto& all = device::all_factories();
  std::lock_guard const lock(all.mutex);
  auto& known = device::with_nccl(all);
  bool const is_taken = std::any_of(known.begin(), known.end(), [&](auto const& one) { return one->name() == name; });
  if (is_taken || name == "staged" || name == "none") device::refuse_factory("the name is taken", std::string(name));
  known.insert(known.begin(), std::move(factory));
}

}  // namespace crossrank
