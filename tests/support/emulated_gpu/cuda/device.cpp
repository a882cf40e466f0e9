#include "tests/support/emulated_gpu/cuda/device.hpp"

#include <cstdio>
#include <cstring>
#include <functional>
#include <set>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/context.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

Device describe(int physical) {
  Device device;
  device.physical = physical;
  auto const host = std::hash<std::string>{}(options().host);
  std::memcpy(device.uuid.data(), &host, sizeof host);
  device.uuid[8] = 0xE0;
  device.uuid[15] = static_cast<unsigned char>(physical);
  char pci[32];
  std::snprintf(pci, sizeof pci, "0000:%02X:00.0", static_cast<unsigned>(physical + 1) & 0xFFU);
  device.pci = pci;
  return device;
}

std::string uuid_text(Device const& device) {
  std::string text = "GPU-";
  char digits[3];
  for (std::size_t i = 0; i < device.uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::snprintf(digits, sizeof digits, "%02x", device.uuid[i]);
    text += digits;
  }
  return text;
}

/// CUDA_VISIBLE_DEVICES: indices or uuid prefixes; the first wrong entry ends the list.
std::vector<Device>* list_devices() {
  std::vector<Device> all;
  for (int i = 0; i < options().count; ++i) all.push_back(describe(i));
  if (!options().visible_set) return new std::vector<Device>(all);
  auto* const visible = new std::vector<Device>;
  std::set<int> taken;
  for (auto const& entry : split(options().visible, ',')) {
    Device const* found = nullptr;
    for (auto const& device : all) {
      bool const by_uuid = entry.starts_with("GPU-") && uuid_text(device).starts_with(entry);
      if (by_uuid || entry == std::to_string(device.physical)) found = &device;
    }
    if (found == nullptr) break;
    if (!taken.insert(found->physical).second) {  // a device named twice leaves none
      visible->clear();
      break;
    }
    visible->push_back(*found);
  }
  return visible;
}

Device const& at(CUdevice device) {
  if (device < 0 || device >= static_cast<int>(devices().size())) throw Failure{CUDA_ERROR_INVALID_DEVICE};
  return devices()[static_cast<std::size_t>(device)];
}

int attribute_of(Device const& device, CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return max_pitch;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 8;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device.physical + 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return options().capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return options().capability % 10;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: return options().read_only_register ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: return 0;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return options().driver_version >= 11020 ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: return 1;
    default: return 0;
  }
}

}  // namespace

std::vector<Device> const& devices() {
  static std::vector<Device> const* const list = list_devices();
  return *list;
}

bool peers(int from, int to) {
  int const a = at(from).physical;
  int const b = at(to).physical;
  if (a == b || options().peers == "none") return false;
  if (options().peers == "all") return true;
  for (auto const& pair : split(options().peers, ',')) {
    if (pair == std::to_string(a) + "-" + std::to_string(b) || pair == std::to_string(b) + "-" + std::to_string(a)) {
      return true;
    }
  }
  return false;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuInit(unsigned flags) {
  return call("cuInit", Needs::nothing, [&] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    require(!devices().empty(), CUDA_ERROR_NO_DEVICE);
    initialize();
  });
}

CUresult cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", Needs::nothing, [&] { out(version) = options().driver_version; });
}

CUresult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", Needs::init, [&] { out(count) = static_cast<int>(devices().size()); });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call("cuDeviceGet", Needs::init, [&] {
    static_cast<void>(at(ordinal));
    out(device) = ordinal;
  });
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  return call("cuDeviceGetName", Needs::init, [&] {
    require(name != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
    std::snprintf(name, static_cast<std::size_t>(size), "Emulated GPU %d", at(device).physical);
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid", Needs::init, [&] { std::memcpy(out(uuid).bytes, at(device).uuid.data(), 16); });
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid_v2", Needs::init, [&] { std::memcpy(out(uuid).bytes, at(device).uuid.data(), 16); });
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  return call("cuDeviceTotalMem_v2", Needs::init, [&] {
    static_cast<void>(at(device));
    out(bytes) = options().memory;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return call("cuDeviceGetAttribute", Needs::init, [&] { out(value) = attribute_of(at(device), attribute); });
}

CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  return call("cuDeviceGetPCIBusId", Needs::init, [&] {
    require(text != nullptr && size >= 13, CUDA_ERROR_INVALID_VALUE);
    std::snprintf(text, static_cast<std::size_t>(size), "%s", at(device).pci.c_str());
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, char const* text) {
  return call("cuDeviceGetByPCIBusId", Needs::init, [&] {
    for (std::size_t i = 0; i < devices().size(); ++i) {
      if (devices()[i].pci == text) {
        out(device) = static_cast<int>(i);
        return;
      }
    }
    throw Failure{CUDA_ERROR_INVALID_DEVICE};
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return call("cuDeviceCanAccessPeer", Needs::init, [&] { out(can) = peers(device, peer) ? 1 : 0; });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
  return call("cuDeviceGetP2PAttribute", Needs::init, [&] {
    require(device != peer, CUDA_ERROR_INVALID_DEVICE);
    bool const rank = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
    out(value) = peers(device, peer) && !rank ? 1 : 0;
  });
}

CUresult cuMemGetInfo_v2(std::size_t* available, std::size_t* total) {
  return call("cuMemGetInfo_v2", Needs::context, [&] {
    out(total) = options().memory;
    out(available) = options().memory - memory().used(current()->device);
  });
}
}
