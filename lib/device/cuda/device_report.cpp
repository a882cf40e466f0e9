#include <crossrank/cuda.hpp>

#include <array>
#include <cstddef>
#include <string>

#include <crossrank/error.hpp>

#include "lib/device/cuda/device_state.hpp"
#include "lib/device/cuda/driver.hpp"

namespace crossrank::cuda {
namespace {

using api::DeviceAttribute;
using api::Result;

constexpr char const* info_operation = "cuda.device_info";
constexpr std::size_t text_length = 256;

std::string hex_groups(api::Uuid const& uuid) {
  constexpr auto const* digits = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    auto const byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

int attribute(Driver const& driver, DeviceAttribute which, int handle) {
  int value = 0;
  check(driver, driver.functions.cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute", info_operation);
  return value;
}

}  // namespace

int device_count() {
  try {
    return driver().device_count;
  } catch (UnavailableError const&) {
    return 0;
  }
}

void require_driver() {
  auto const& opened = driver();
  if (opened.device_count == 0)
    throw_driver_error(opened.functions, Result::no_device, "cuInit", "use CUDA", opened.path);
}

DriverInfo driver_info() {
  auto const& opened = driver();
  return {.path = opened.path, .version = opened.version, .missing = opened.missing};
}

DeviceInfo device_info(Device device) {
  auto const& state = device_state(device);
  auto const& opened = state.driver();
  auto const& f = opened.functions;
  ContextScope const scope(state);
  DeviceInfo out{.device = device, .has_memory_pools = state.pool() != nullptr};
  int handle = 0;
  check(opened, f.cuDeviceGet(&handle, device.index), "cuDeviceGet", info_operation);
  std::array<char, text_length> text{};
  check(opened, f.cuDeviceGetName(text.data(), static_cast<int>(text.size()), handle), "cuDeviceGetName",
        info_operation);
  out.name = text.data();
  check(opened, f.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), handle), "cuDeviceGetPCIBusId",
        info_operation);
  out.pci = text.data();
  api::Uuid uuid{};
  if (f.cuDeviceGetUuid_v2 != nullptr) {
    check(opened, f.cuDeviceGetUuid_v2(&uuid, handle), "cuDeviceGetUuid", info_operation);
    out.uuid = hex_groups(uuid);
  }
  out.compute_capability = {attribute(opened, DeviceAttribute::compute_capability_major, handle),
                            attribute(opened, DeviceAttribute::compute_capability_minor, handle)};
  check(opened, f.cuMemGetInfo_v2(&out.free_bytes, &out.total_bytes), "cuMemGetInfo", info_operation);
  for (int other = 0; other < opened.device_count; ++other) {
    int peer = 0;
    int reaches = 0;
    if (other == device.index) continue;
    check(opened, f.cuDeviceGet(&peer, other), "cuDeviceGet", info_operation);
    check(opened, f.cuDeviceCanAccessPeer(&reaches, handle, peer), "cuDeviceCanAccessPeer", info_operation);
    if (reaches != 0) out.peers.push_back(Device::cuda(other));
  }
  return out;
}

}  // namespace crossrank::cuda
