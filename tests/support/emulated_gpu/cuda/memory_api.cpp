// Legacy device memory, pointer attributes, IPC handles and stream-ordered pools.
#include <unistd.h>

#include <cstring>
#include <set>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/device.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

/// What the 64 bytes of an IPC handle hold.
struct IpcMemory {
  FileName name;
  std::array<unsigned char, 16> uuid;
  std::uint64_t size;
};
static_assert(sizeof(IpcMemory) <= sizeof(CUipcMemHandle));

struct Imports {
  std::mutex mutex;
  std::map<std::uint64_t, std::pair<std::uintptr_t, int>> open;  // by inode: address and how often it is open
};
Imports& imports() {
  static auto* const instance = new Imports;
  return *instance;
}

void check_importers(Range const& range) {
  if (!range.file) return;
  if (imported_elsewhere(*range.file, range.size)) report("memory is freed while another process has it open");
  mark_freed(*range.file, range.size);
}

void free_now(CUdeviceptr address) {
  auto const range = memory().find(address);
  require(range != nullptr && range->base == address, CUDA_ERROR_INVALID_VALUE);
  require(range->kind == RangeKind::allocation || range->kind == RangeKind::pool, CUDA_ERROR_INVALID_VALUE);
  if (range->given_back.exchange(true)) {
    report("device memory is freed twice");
    throw Failure{CUDA_ERROR_INVALID_VALUE};
  }
  drain(primary(range->device));
  check_importers(*range);
  memory().give(range->device, range->size);
  memory().retire(*range);
  died(Kind::allocation);
}

int local_device(std::array<unsigned char, 16> const& uuid) {
  for (std::size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].uuid == uuid) return static_cast<int>(i);
  }
  throw Failure{CUDA_ERROR_INVALID_DEVICE};
}

CUdeviceptr open_ipc(IpcMemory const& ipc) {
  require(ipc.name.process != ::getpid(), CUDA_ERROR_INVALID_CONTEXT);
  int const owner = local_device(ipc.uuid);
  int const here = current()->device;
  require(owner == here || peers(here, owner), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  std::lock_guard const lock(imports().mutex);
  if (auto const found = imports().open.find(ipc.name.inode); found != imports().open.end()) {
    require(options().driver_version >= 12000, CUDA_ERROR_ALREADY_MAPPED);
    ++found->second.second;
    return found->second.first;
  }
  auto const file = MemoryFile::open(ipc.name);
  require(file != nullptr, CUDA_ERROR_INVALID_VALUE);
  auto range = std::make_shared<Range>();
  range->kind = RangeKind::imported;
  range->size = ipc.size;
  range->reserved = round_up(ipc.size, page_size()) + page_size();
  range->base = reserve(range->reserved);
  range->bytes = file->bytes();
  range->file = file;
  range->device = owner;
  // A shared_ptr would be a cycle; the range holds the file.
  range->exporter_has_freed = [raw = file.get(), size = range->size] { return marked_freed(*raw, size); };
  auto const base = range->base;
  count_import(*file, ipc.size, true);
  memory().add(std::move(range));
  imports().open[ipc.name.inode] = {base, 1};
  {
    std::lock_guard const context_lock(current()->mutex);
    if (owner != here) current()->peers.insert(owner);
  }
  born(Kind::allocation);
  return base;
}

void close_ipc(CUdeviceptr address) {
  std::lock_guard const lock(imports().mutex);
  for (auto entry = imports().open.begin(); entry != imports().open.end(); ++entry) {
    if (entry->second.first != address) continue;
    if (--entry->second.second > 0) return;
    imports().open.erase(entry);
    auto const range = memory().check(address, 1);
    drain(*current());
    count_import(*range->file, range->size, false);
    range->bytes = nullptr;
    range->given_back = range->gone = true;
    memory().remove(range->base);
    died(Kind::allocation);
    return;
  }
  throw Failure{CUDA_ERROR_INVALID_VALUE};
}

void attribute(CUpointer_attribute which, void* data, Range const& range, CUdeviceptr address) {
  auto const put = [&](auto value) { std::memcpy(data, &value, sizeof value); };
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return put(handle_of(range.on_host() ? current() : &primary(range.device)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      return put(static_cast<unsigned>(range.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: require(range.on_host(), CUDA_ERROR_INVALID_VALUE); return put(address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(range.on_host() ? current()->device : range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put(range.kind == RangeKind::allocation ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(static_cast<CUdeviceptr>(range.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(range.size);
    case CU_POINTER_ATTRIBUTE_MAPPED: return put(1);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(range.pool);
    default: throw Failure{CUDA_ERROR_INVALID_VALUE};
  }
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  return call("cuMemAlloc_v2", Needs::context, [&] {
    forbid_in_capture("cuMemAlloc_v2");
    out(address) = memory().allocate(current()->device, size, RangeKind::allocation)->base;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return call("cuMemFree_v2", Needs::context, [&] {
    if (address == 0) return;
    forbid_in_capture("cuMemFree_v2");
    free_now(address);
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  return call("cuMemGetAddressRange_v2", Needs::context, [&] {
    auto const range = memory().find(address);
    require(range != nullptr && !range->given_back, CUDA_ERROR_NOT_FOUND);
    if (base != nullptr) *base = range->base;
    if (size != nullptr) *size = range->size;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  return call("cuPointerGetAttribute", Needs::context, [&] {
    require(data != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto const range = memory().find(address);
    require(range != nullptr && !range->given_back, CUDA_ERROR_INVALID_VALUE);
    attribute(which, data, *range, address);
  });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr address) {
  return call("cuPointerGetAttributes", Needs::init, [&] {
    require(which != nullptr && data != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto const range = memory().find(address);
    bool const known = range != nullptr && !range->given_back;
    for (unsigned i = 0; i < count; ++i) {
      if (known) {
        attribute(which[i], data[i], *range, address);
      } else {  // ordinary host memory: zero for the type, -2 for the device
        bool const ordinal = which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        int const value = ordinal ? -2 : 0;
        std::memcpy(data[i], &value, sizeof value);
      }
    }
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return call("cuIpcGetMemHandle", Needs::context, [&] {
    auto const range = memory().check(address, 1);
    require(range->kind == RangeKind::allocation, CUDA_ERROR_INVALID_VALUE);
    IpcMemory const ipc{range->file->name(), devices()[static_cast<std::size_t>(range->device)].uuid, range->size};
    std::memset(out(handle).reserved, 0, sizeof handle->reserved);
    std::memcpy(handle->reserved, &ipc, sizeof ipc);
  });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return call("cuIpcOpenMemHandle_v2", Needs::context, [&] {
    require(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
    IpcMemory ipc;
    std::memcpy(&ipc, handle.reserved, sizeof ipc);
    out(address) = open_ipc(ipc);
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return call("cuIpcCloseMemHandle", Needs::context, [&] { close_ipc(address); });
}
}
