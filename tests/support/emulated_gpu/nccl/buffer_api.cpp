// Buffers that NCCL allocates or knows.
#include <map>

#include "tests/support/emulated_gpu/nccl/group.hpp"

extern "C" {
CUresult cuCtxGetDevice(CUdevice*);
CUresult cuMemGetAllocationGranularity(std::size_t*, CUmemAllocationProp const*, CUmemAllocationGranularity_flags);
CUresult cuMemCreate(CUmemGenericAllocationHandle*, std::size_t, CUmemAllocationProp const*, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemAddressReserve(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, std::size_t);
CUresult cuMemMap(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, std::size_t);
CUresult cuMemSetAccess(CUdeviceptr, std::size_t, CUmemAccessDesc const*, std::size_t);
CUresult cuMemGetAddressRange_v2(CUdeviceptr*, std::size_t*, CUdeviceptr);
}

namespace emulated::nccl {
namespace {

void demand_cuda(CUresult result) {
  demand(result == CUDA_SUCCESS, ncclUnhandledCudaError, "the driver refuses the memory");
}

/// A registered buffer, or a window.
struct Buffer {
  CUdeviceptr address = 0;
  std::size_t size = 0;
};
auto& buffers() {
  static auto* const instance = new Registry<void*, Buffer>;
  return *instance;
}

void* add_buffer(Communicator& comm, void* pointer, std::size_t size) {
  auto const address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
  CUdeviceptr base = 0;
  std::size_t whole = 0;
  demand(cuMemGetAddressRange_v2(&base, &whole, address) == CUDA_SUCCESS && size <= whole - (address - base),
         ncclInvalidArgument, "the buffer is not within one device allocation");
  ++comm.registered;
  return buffers().add(std::make_shared<Buffer>(Buffer{address, size}));
}

/// The communicator, which must not be finalized: that releases what a registration refers to.
std::shared_ptr<Communicator> owner_of_buffers(ncclComm_t comm) {
  auto owner = comms().find(comm);
  demand(!owner->finalized, ncclInvalidUsage, "the communicator was finalized before its buffers were deregistered");
  return owner;
}

}  // namespace
}  // namespace emulated::nccl

using namespace emulated;
using namespace emulated::nccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** pointer, std::size_t size) {
  return nccl::call("ncclMemAlloc", [&] {
    demand(pointer != nullptr && size != 0, ncclInvalidArgument, "there is nothing to allocate");
    CUdevice device = 0;
    demand_cuda(cuCtxGetDevice(&device));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    std::size_t unit = 0;
    demand_cuda(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    auto const whole = (size + unit - 1) / unit * unit;
    CUmemGenericAllocationHandle handle = 0;
    demand_cuda(cuMemCreate(&handle, whole, &properties, 0));
    CUdeviceptr address = 0;
    demand_cuda(cuMemAddressReserve(&address, whole, 0, 0, 0));
    demand_cuda(cuMemMap(address, whole, 0, handle, 0));
    CUmemAccessDesc const access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    demand_cuda(cuMemSetAccess(address, whole, &access, 1));
    demand_cuda(cuMemRelease(handle));
    *pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* pointer) {
  return nccl::call("ncclMemFree", [&] {
    if (pointer == nullptr) return ncclSuccess;
    auto const address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
    CUdeviceptr base = 0;
    std::size_t size = 0;
    demand_cuda(cuMemGetAddressRange_v2(&base, &size, address));
    demand(base == address, ncclInvalidArgument, "the pointer is not from ncclMemAlloc");
    demand_cuda(cuMemUnmap(base, size));
    demand_cuda(cuMemAddressFree(base, size));
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t size, void** handle) {
  return nccl::call("ncclCommRegister", [&] {
    demand(handle != nullptr, ncclInvalidArgument, "there is no place for the handle");
    *handle = add_buffer(*ready(comm), buffer, size);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return nccl::call("ncclCommDeregister", [&] {
    auto const owner = owner_of_buffers(comm);
    buffers().remove(handle);
    --owner->registered;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t size, ncclWindow_t* window, int) {
  return nccl::call("ncclCommWindowRegister", [&] {
    demand(window != nullptr, ncclInvalidArgument, "there is no place for the window");
    auto const owner = ready(comm);
    *window = reinterpret_cast<ncclWindow_t>(add_buffer(*owner, buffer, size));
    // Collective: all ranks come here.
    return add_job(owner, [owner] { static_cast<void>(owner->exchange(Blob{}, owner->everyone())); });
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return nccl::call("ncclCommWindowDeregister", [&] {
    if (window == nullptr) return ncclSuccess;
    auto const owner = owner_of_buffers(comm);
    buffers().remove(window);
    --owner->registered;
    return ncclSuccess;
  });
}
}
