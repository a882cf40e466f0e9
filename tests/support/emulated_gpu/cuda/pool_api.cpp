// Stream-ordered memory: a range exists for the host at once, for streams once its allocation has run.
#include <cstring>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/device.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"

namespace emulated {
namespace {

struct Pool {
  int device = 0;
  std::mutex mutex;
  std::map<int, CUmemAccess_flags> access;
  cuuint64_t release_threshold = 0;
  std::map<int, int> flags;
};

auto& pools() {
  static auto* const instance = new Registry<CUmemoryPool, Pool>;
  return *instance;
}

CUmemoryPool default_pool(CUdevice device) {
  require(device >= 0 && device < static_cast<int>(devices().size()), CUDA_ERROR_INVALID_DEVICE);
  static auto* const handles = [] {
    auto* const all = new std::vector<CUmemoryPool>;
    for (std::size_t i = 0; i < devices().size(); ++i) {
      auto pool = std::make_shared<Pool>();
      pool->device = static_cast<int>(i);
      all->push_back(pools().add(std::move(pool)));
    }
    return all;
  }();
  return (*handles)[static_cast<std::size_t>(device)];
}

std::mutex current_mutex;
std::map<int, CUmemoryPool>& current_pools() {
  static auto* const instance = new std::map<int, CUmemoryPool>;
  return *instance;
}

CUmemoryPool current_pool(CUdevice device) {
  std::lock_guard const lock(current_mutex);
  auto const found = current_pools().find(device);
  return found != current_pools().end() ? found->second : default_pool(device);
}

/// Frees memory that a graph has allocated, when the graph goes.
std::shared_ptr<void> owner_for_graph(std::shared_ptr<Range> const& range) {
  return {nullptr, [range](void*) {
            if (range->given_back.exchange(true)) return;
            memory().give(range->device, range->size);
            memory().retire(*range);
            died(Kind::allocation);
          }};
}

CUdeviceptr allocate(std::size_t size, CUmemoryPool handle, CUstream stream_handle) {
  auto const pool = pools().find(handle, CUDA_ERROR_INVALID_VALUE);
  auto const stream = current_stream_of(stream_handle);
  auto const range = memory().allocate(pool->device, size, RangeKind::pool);
  range->pool = handle;
  {
    std::lock_guard const lock(pool->mutex);
    range->access = pool->access;
  }
  if (captured_end(*stream).capture) {
    give_to_capture(*stream, owner_for_graph(range));
    return range->base;
  }
  range->ready = false;
  submit(stream, {.name = "stream-ordered allocation", .run = [range] { range->ready = true; }});
  return range->base;
}

void free_in_order(CUdeviceptr address, CUstream stream_handle) {
  auto const stream = current_stream_of(stream_handle);
  auto const range = memory().find(address);
  require(range != nullptr && range->base == address && range->kind == RangeKind::pool, CUDA_ERROR_INVALID_VALUE);
  if (captured_end(*stream).capture) return;  // the graph owns the memory
  if (range->given_back.exchange(true)) {
    report("device memory is freed twice");
    throw Failure{CUDA_ERROR_INVALID_VALUE};
  }
  memory().give(range->device, range->size);
  died(Kind::allocation);
  submit(stream, {.name = "stream-ordered free", .run = [range] { memory().retire(*range); }});
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t size, CUstream stream) {
  return call("cuMemAllocAsync", Needs::context,
              [&] { out(address) = allocate(size, current_pool(stream_of(stream)->context.device), stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size, CUmemoryPool pool, CUstream stream) {
  return call("cuMemAllocFromPoolAsync", Needs::context, [&] { out(address) = allocate(size, pool, stream); });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return call("cuMemFreeAsync", Needs::context, [&] { free_in_order(address, stream); });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return call("cuDeviceGetDefaultMemPool", Needs::init, [&] { out(pool) = default_pool(device); });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return call("cuDeviceGetMemPool", Needs::init, [&] { out(pool) = current_pool(device); });
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return call("cuDeviceSetMemPool", Needs::init, [&] {
    require(pools().find(pool, CUDA_ERROR_INVALID_VALUE)->device == device, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard const lock(current_mutex);
    current_pools()[device] = pool;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* handle, CUmemPoolProps const* properties) {
  return call("cuMemPoolCreate", Needs::init, [&] {
    require(properties != nullptr && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
            CUDA_ERROR_INVALID_VALUE);
    require(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
    auto pool = std::make_shared<Pool>();
    pool->device = properties->location.id;
    require(pool->device >= 0 && pool->device < static_cast<int>(devices().size()), CUDA_ERROR_INVALID_DEVICE);
    out(handle) = pools().add(std::move(pool));
    born(Kind::pool);
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return call("cuMemPoolDestroy", Needs::init, [&] {
    for (std::size_t i = 0; i < devices().size(); ++i) {
      require(default_pool(static_cast<int>(i)) != pool, CUDA_ERROR_INVALID_VALUE);
    }
    pools().remove(pool, CUDA_ERROR_INVALID_VALUE);
    died(Kind::pool);
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t) {
  return call("cuMemPoolTrimTo", Needs::init, [&] { static_cast<void>(pools().find(pool, CUDA_ERROR_INVALID_VALUE)); });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return call("cuMemPoolSetAttribute", Needs::init, [&] {
    require(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto const pool = pools().find(handle, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard const lock(pool->mutex);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
      std::memcpy(&pool->release_threshold, value, sizeof pool->release_threshold);
    } else if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
      std::memcpy(&pool->flags[attribute], value, sizeof(int));
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return call("cuMemPoolGetAttribute", Needs::init, [&] {
    require(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto const pool = pools().find(handle, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard const lock(pool->mutex);
    if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
      int const flag = pool->flags.contains(attribute) ? pool->flags[attribute] : 1;
      std::memcpy(value, &flag, sizeof flag);
      return;
    }
    cuuint64_t const used = memory().used(pool->device);
    auto const number = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? pool->release_threshold : used;
    std::memcpy(value, &number, sizeof number);
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, CUmemAccessDesc const* accesses, std::size_t count) {
  return call("cuMemPoolSetAccess", Needs::init, [&] {
    auto const pool = pools().find(handle, CUDA_ERROR_INVALID_VALUE);
    for (std::size_t i = 0; i < count; ++i) {
      int const device = accesses[i].location.id;
      require(device == pool->device || peers(device, pool->device), CUDA_ERROR_INVALID_DEVICE);
      std::lock_guard const lock(pool->mutex);
      pool->access[device] = accesses[i].flags;
    }
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return call("cuMemPoolGetAccess", Needs::init, [&] {
    auto const pool = pools().find(handle, CUDA_ERROR_INVALID_VALUE);
    int const device = out(location).id;
    std::lock_guard const lock(pool->mutex);
    auto const found = pool->access.find(device);
    auto const own = device == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    out(flags) = found != pool->access.end() ? found->second : own;
  });
}
}
