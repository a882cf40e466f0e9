// Registered and pinned host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

enum class Pages { missing, read_only, writable };

/// What the kernel says of the pages: the weakest of them.
Pages pages_of(std::uintptr_t address, std::size_t size) {
  std::ifstream maps("/proc/self/maps");
  auto result = Pages::writable;
  auto next = address;
  for (std::string line; next < address + size && std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string access;
    fields >> std::hex >> start >> dash >> end >> access;
    if (end <= next) continue;
    if (start > next || access[0] != 'r') return Pages::missing;
    if (access[1] != 'w') result = Pages::read_only;
    next = end;
  }
  return next < address + size ? Pages::missing : result;
}

void add(void* host, std::size_t size, RangeKind kind, unsigned flags) {
  auto range = std::make_shared<Range>();
  range->kind = kind;
  range->base = reinterpret_cast<std::uintptr_t>(host);
  range->size = size;
  range->bytes = static_cast<std::byte*>(host);
  range->flags = flags;
  memory().add(std::move(range));
  born(Kind::host);
}

void allocate(void** host, std::size_t size, unsigned flags) {
  require(size != 0, CUDA_ERROR_INVALID_VALUE);
  forbid_in_capture("cuMemHostAlloc");
  void* const bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(bytes != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  add(bytes, size, RangeKind::host, flags);
  out(host) = bytes;
}

/// Takes the range at exactly this address out of the table, after all streams that may use it have run.
std::shared_ptr<Range> take(void* host, RangeKind kind, CUresult otherwise) {
  auto const base = reinterpret_cast<std::uintptr_t>(host);
  auto range = memory().find(base);
  require(range && range->kind == kind && range->base == base, otherwise);
  drain(*current());
  memory().remove(base);
  died(Kind::host);
  return range;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuMemHostAlloc(void** host, std::size_t size, unsigned flags) {
  return call("cuMemHostAlloc", Needs::context, [&] { allocate(host, size, flags); });
}

CUresult cuMemAllocHost_v2(void** host, std::size_t size) {
  return call("cuMemAllocHost_v2", Needs::context, [&] { allocate(host, size, 0); });
}

CUresult cuMemFreeHost(void* host) {
  return call("cuMemFreeHost", Needs::context, [&] {
    if (host == nullptr) return;
    forbid_in_capture("cuMemFreeHost");
    auto const range = take(host, RangeKind::host, CUDA_ERROR_INVALID_VALUE);
    ::munmap(host, range->size);
  });
}

CUresult cuMemHostRegister_v2(void* host, std::size_t size, unsigned flags) {
  return call("cuMemHostRegister_v2", Needs::context, [&] {
    require(host != nullptr && size != 0, CUDA_ERROR_INVALID_VALUE);
    forbid_in_capture("cuMemHostRegister_v2");
    bool const read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    require(!read_only || options().read_only_register, CUDA_ERROR_NOT_SUPPORTED);
    auto const address = reinterpret_cast<std::uintptr_t>(host);
    require(!memory().overlaps(address, size), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    auto const pages = pages_of(address, size);
    require(pages == Pages::writable || (pages == Pages::read_only && read_only), CUDA_ERROR_INVALID_VALUE);
    add(host, size, RangeKind::registered, flags);
  });
}

CUresult cuMemHostUnregister(void* host) {
  return call("cuMemHostUnregister", Needs::context, [&] {
    forbid_in_capture("cuMemHostUnregister");
    auto const range = take(host, RangeKind::registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    if (pages_of(range->base, range->size) == Pages::missing) {
      report("registered memory was unmapped before it was unregistered");
    }
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned flags) {
  return call("cuMemHostGetDevicePointer_v2", Needs::context, [&] {
    auto const range = memory().find(reinterpret_cast<std::uintptr_t>(host));
    require(flags == 0 && range && range->on_host(), CUDA_ERROR_INVALID_VALUE);
    out(address) = reinterpret_cast<std::uintptr_t>(host);
  });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  return call("cuMemHostGetFlags", Needs::context, [&] {
    auto const range = memory().find(reinterpret_cast<std::uintptr_t>(host));
    require(range && range->on_host(), CUDA_ERROR_INVALID_VALUE);
    out(flags) = range->flags;
  });
}
}
