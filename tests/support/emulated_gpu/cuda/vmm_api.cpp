// Virtual memory management: physical memory in a memfd, which other processes import by its descriptor, mapped at
// reserved addresses.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/device.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

constexpr std::size_t granularity = 2UL << 20;

/// Stands behind the memory of the file and travels with it.
struct Label {
  std::array<unsigned char, 16> uuid;
  CUmemAllocationHandleType types;
};

struct Physical {
  CUmemAllocationProp properties{};
  std::size_t size = 0;
  std::shared_ptr<MemoryFile> file;
  bool imported = false;
  ~Physical() {
    if (!imported) memory().give(properties.location.id, size);
    died(Kind::allocation);
  }
};

auto& handles() {
  static auto* const instance = new Registry<CUmemGenericAllocationHandle, Physical>;
  return *instance;
}

struct Tables {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> reserved;              // by address
  std::map<std::uintptr_t, std::shared_ptr<Physical>> mapped;  // by address
};
Tables& tables() {
  static auto* const instance = new Tables;
  return *instance;
}

Label& label(Physical const& physical) { return *reinterpret_cast<Label*>(physical.file->bytes() + physical.size); }

void check_properties(CUmemAllocationProp const* properties) {
  require(properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
              properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
          CUDA_ERROR_INVALID_VALUE);
  int const device = properties->location.id;
  require(device >= 0 && device < static_cast<int>(devices().size()), CUDA_ERROR_INVALID_DEVICE);
}

std::shared_ptr<Physical> import(int descriptor) {
  auto const physical = std::make_shared<Physical>();
  born(Kind::allocation);
  physical->imported = true;
  physical->file = MemoryFile::adopt(descriptor);
  require(physical->file != nullptr && physical->file->size() > page_size(), CUDA_ERROR_INVALID_VALUE);
  physical->size = physical->file->size() - page_size();
  require(physical->size % granularity == 0, CUDA_ERROR_INVALID_VALUE);
  auto const& text = label(*physical);
  for (std::size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].uuid != text.uuid) continue;
    physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    physical->properties.requestedHandleTypes = text.types;
    physical->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(i)};
    return physical;
  }
  throw Failure{CUDA_ERROR_INVALID_DEVICE};
}

void map(std::uintptr_t base, std::size_t size, std::size_t offset, std::shared_ptr<Physical> const& physical) {
  require(size != 0 && size % granularity == 0 && offset == 0 && size == physical->size, CUDA_ERROR_INVALID_VALUE);
  std::lock_guard const lock(tables().mutex);
  auto const next = tables().reserved.upper_bound(base);
  require(next != tables().reserved.begin(), CUDA_ERROR_INVALID_VALUE);
  auto const& [start, length] = *std::prev(next);
  require(base >= start && base + size <= start + length, CUDA_ERROR_INVALID_VALUE);
  require(!memory().overlaps(base, size), CUDA_ERROR_INVALID_VALUE);
  auto range = std::make_shared<Range>();
  range->kind = RangeKind::mapped;
  range->base = base;
  range->size = size;
  range->bytes = physical->file->bytes();
  range->file = physical->file;
  range->device = physical->properties.location.id;
  memory().add(std::move(range));
  tables().mapped[base] = physical;
}

/// Returns the mapped ranges that make up exactly these addresses.
std::vector<std::shared_ptr<Range>> mapped_ranges(std::uintptr_t base, std::size_t size) {
  std::vector<std::shared_ptr<Range>> ranges;
  for (auto address = base; address < base + size;) {
    auto range = memory().find(address);
    require(range && range->kind == RangeKind::mapped && range->base == address, CUDA_ERROR_INVALID_VALUE);
    address += range->size;
    require(address <= base + size, CUDA_ERROR_INVALID_VALUE);
    ranges.push_back(std::move(range));
  }
  return ranges;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, CUmemAllocationProp const* properties,
                                       CUmemAllocationGranularity_flags) {
  return call("cuMemGetAllocationGranularity", Needs::init, [&] {
    check_properties(properties);
    out(bytes) = granularity;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size, CUmemAllocationProp const* properties,
                     unsigned long long flags) {
  return call("cuMemCreate", Needs::init, [&] {
    check_properties(properties);
    forbid_in_capture("cuMemCreate");
    require(flags == 0 && size != 0 && size % granularity == 0, CUDA_ERROR_INVALID_VALUE);
    memory().take(properties->location.id, size);
    auto physical = std::make_shared<Physical>();
    born(Kind::allocation);
    physical->properties = *properties;
    physical->size = size;
    physical->file = MemoryFile::create("physical", size + page_size());
    require(physical->file != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    label(*physical) = {devices()[static_cast<std::size_t>(properties->location.id)].uuid,
                        properties->requestedHandleTypes};
    out(handle) = handles().add(std::move(physical));
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call("cuMemRelease", Needs::init, [&] { handles().remove(handle, CUDA_ERROR_INVALID_VALUE); });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return call("cuMemAddressReserve", Needs::init, [&] {
    require(flags == 0 && size != 0 && size % granularity == 0, CUDA_ERROR_INVALID_VALUE);
    auto const unit = std::max(alignment, granularity);
    auto const start = reserve(size + unit);
    auto const base = round_up(start, unit);
    if (base != start) unreserve(start, base - start);
    unreserve(base + size, start + unit - base);
    std::lock_guard const lock(tables().mutex);
    tables().reserved[base] = size;
    out(address) = base;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  return call("cuMemAddressFree", Needs::init, [&] {
    std::lock_guard const lock(tables().mutex);
    auto const found = tables().reserved.find(address);
    require(found != tables().reserved.end() && found->second == size, CUDA_ERROR_INVALID_VALUE);
    require(!memory().overlaps(address, size), CUDA_ERROR_INVALID_VALUE);
    tables().reserved.erase(found);
    unreserve(address, size);
  });
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return call("cuMemMap", Needs::init, [&] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    map(address, size, offset, handles().find(handle, CUDA_ERROR_INVALID_VALUE));
  });
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  return call("cuMemUnmap", Needs::init, [&] {
    auto const ranges = mapped_ranges(address, size);
    for (std::size_t i = 0; i < devices().size(); ++i) {
      if (primary(static_cast<int>(i)).alive) drain(primary(static_cast<int>(i)));
    }
    std::lock_guard const lock(tables().mutex);
    for (auto const& range : ranges) {
      memory().remove(range->base);
      tables().mapped.erase(range->base);
    }
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, CUmemAccessDesc const* accesses, std::size_t count) {
  return call("cuMemSetAccess", Needs::init, [&] {
    require(accesses != nullptr, CUDA_ERROR_INVALID_VALUE);
    for (auto const& range : mapped_ranges(address, size)) {
      for (std::size_t i = 0; i < count; ++i) {
        int const device = accesses[i].location.id;
        require(device == range->device || peers(device, range->device), CUDA_ERROR_INVALID_DEVICE);
        range->access[device] = accesses[i].flags;
      }
    }
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, CUmemLocation const* location, CUdeviceptr address) {
  return call("cuMemGetAccess", Needs::init, [&] {
    auto const range = memory().find(address);
    require(location != nullptr && range && range->kind == RangeKind::mapped, CUDA_ERROR_INVALID_VALUE);
    auto const found = range->access.find(location->id);
    out(flags) = found == range->access.end() ? 0 : static_cast<unsigned long long>(found->second);
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return call("cuMemExportToShareableHandle", Needs::init, [&] {
    auto const physical = handles().find(handle, CUDA_ERROR_INVALID_VALUE);
    require(shareable != nullptr && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                (physical->properties.requestedHandleTypes & type) != 0,
            CUDA_ERROR_INVALID_VALUE);
    int const copy = ::dup(physical->file->descriptor());
    require(copy >= 0, CUDA_ERROR_OUT_OF_MEMORY);
    *static_cast<int*>(shareable) = copy;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return call("cuMemImportFromShareableHandle", Needs::init, [&] {
    require(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    out(handle) = handles().add(import(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable))));
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return call("cuMemRetainAllocationHandle", Needs::init, [&] {
    auto const range = memory().find(reinterpret_cast<std::uintptr_t>(address));
    require(range && range->kind == RangeKind::mapped, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard const lock(tables().mutex);
    out(handle) = handles().add(tables().mapped.at(range->base));
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return call("cuMemGetAllocationPropertiesFromHandle", Needs::init,
              [&] { out(properties) = handles().find(handle, CUDA_ERROR_INVALID_VALUE)->properties; });
}
}
