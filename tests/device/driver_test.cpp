// What the emulated driver and the real one have in common, one test per rule. Each source names a section of NVIDIA's
// "CUDA Driver API" reference (API) or of the "CUDA C++ Programming Guide" (Guide).
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/device/driver.hpp"

namespace device_test {
namespace {

constexpr std::size_t many = 1 << 16;

// API, Context Management: "cuCtxGetDevice ... CUDA_ERROR_INVALID_CONTEXT".
TEST_F(Driver, refuses_a_call_without_a_current_context) {
  std::thread([] {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu("cuMemAlloc_v2", &address, std::size_t{64}), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

// API, Primary Context Management: the context is reset once its last reference is released.
TEST_F(Driver, releases_a_primary_context_with_its_last_reference) {
  CUcontext again = nullptr;
  ASSERT_EQ(cu("cuDevicePrimaryCtxRetain", &again, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(again, context);
  EXPECT_EQ(cu("cuDevicePrimaryCtxRelease_v2", CUdevice{0}), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(cu("cuDevicePrimaryCtxGetState", CUdevice{0}, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
}

// API, Device Management: identity and memory of a device.
TEST_F(Driver, describes_its_devices) {
  int devices = 0;
  ASSERT_EQ(cu("cuDeviceGetCount", &devices), CUDA_SUCCESS);
  ASSERT_GE(devices, 1);
  char name[64] = {};
  EXPECT_EQ(cu("cuDeviceGetName", static_cast<char*>(name), 64, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_NE(std::string(name), "");
  char pci[16] = {};
  EXPECT_EQ(cu("cuDeviceGetPCIBusId", static_cast<char*>(pci), 16, CUdevice{0}), CUDA_SUCCESS);
  CUdevice found = -1;
  EXPECT_EQ(cu("cuDeviceGetByPCIBusId", &found, static_cast<char const*>(pci)), CUDA_SUCCESS);
  EXPECT_EQ(found, 0);
  EXPECT_EQ(cu("cuDeviceGet", &found, devices), CUDA_ERROR_INVALID_DEVICE);
}

// Guide, Unified Virtual Address Space: device memory is not host memory.
TEST_F(Driver, device_memory_has_no_access_from_the_host) {
  auto const address = allocate(4096);
  if (pid_t const child = ::fork(); child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile char*>(static_cast<std::uintptr_t>(address)) = 1;
    ::_exit(0);
  } else {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  free(address);
}

// API, Stream synchronization behavior: operations of a stream are in order and the host does not wait for them.
TEST_F(Driver, runs_a_stream_in_order) {
  auto const address = allocate(many * sizeof(int));
  auto const s = stream();
  Pinned in(many);
  Pinned back(many);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < many; ++i) in.data[i] = round + static_cast<int>(i);
    ASSERT_EQ(cu("cuMemcpyHtoDAsync_v2", address, static_cast<void const*>(in.data), in.bytes(), s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, in.bytes(), s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
    ASSERT_EQ(std::memcmp(in.data, back.data, in.bytes()), 0) << round;
  }
  destroy(s);
  free(address);
}

// API, Event Management: a wait for an event is a wait for the work captured by its newest record.
TEST_F(Driver, orders_streams_by_events) {
  auto const address = allocate(many * sizeof(int));
  auto const writer = stream();
  auto const reader = stream();
  auto const done = event();
  Pinned back(many);
  for (unsigned round = 0; round < 50; ++round) {
    ASSERT_EQ(cu("cuMemsetD32Async", address, round, many, writer), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuEventRecord", done, writer), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamWaitEvent", reader, done, 0U), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, back.bytes(), reader), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamSynchronize", reader), CUDA_SUCCESS);
    ASSERT_EQ(back.data[many - 1], static_cast<int>(round));
  }
  EXPECT_EQ(cu("cuEventDestroy_v2", done), CUDA_SUCCESS);
  destroy(writer);
  destroy(reader);
  free(address);
}

// API, Stream synchronization behavior, Legacy default stream: it orders with blocking streams.
TEST_F(Driver, orders_the_legacy_stream_with_blocking_streams) {
  auto const address = allocate(many * sizeof(int));
  auto const blocking = stream(CU_STREAM_DEFAULT);
  Pinned back(many);
  for (unsigned round = 0; round < 50; ++round) {
    ASSERT_EQ(cu("cuMemsetD32Async", address, round, many, blocking), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, back.bytes(), CUstream{}),
              CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemsetD32Async", address, round + 1000, many, blocking), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuStreamSynchronize", CUstream{}), CUDA_SUCCESS);
    ASSERT_EQ(back.data[0], static_cast<int>(round));
  }
  destroy(blocking);
  free(address);
}

// API, API synchronization behavior: a copy to pageable memory has ended when the call returns.
TEST_F(Driver, finishes_a_copy_to_pageable_memory_before_it_returns) {
  auto const address = allocate(many * sizeof(int));
  auto const s = stream();
  std::vector<int> back(many);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 7U, many, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data()), address, many * sizeof(int), s), CUDA_SUCCESS);
  EXPECT_EQ(back[many - 1], 7);
  destroy(s);
  free(address);
}

// API, Memory Management, cuMemHostRegister: registered twice, and not registered.
TEST_F(Driver, knows_registered_memory) {
  void* const host = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(cu("cuMemHostRegister_v2", host, std::size_t{8192}, 0U), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuMemHostRegister_v2", host, std::size_t{8192}, 0U), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cu("cuMemHostUnregister", host), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuMemHostUnregister", host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ::munmap(host, 8192);
}

// API, Memory Management, cuMemAlloc: out of memory is a result.
TEST_F(Driver, says_when_memory_is_out) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &address, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu("cuMemAlloc_v2", &address, std::size_t{0}), CUDA_ERROR_INVALID_VALUE);
}

// API, Memory Management: a host pointer is no device pointer.
TEST_F(Driver, refuses_a_host_pointer_as_device_memory) {
  int value = 0;
  auto const wrong = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(&value));
  EXPECT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(&value), wrong, sizeof value), CUDA_ERROR_INVALID_VALUE);
}

// API, Memory Management, cuMemcpy2D: pitches of both sides.
TEST_F(Driver, copies_rows_with_pitches) {
  auto const address = allocate(64 * 8);
  Pinned in(64);
  Pinned back(64);
  for (int i = 0; i < 64; ++i) in.data[i] = i;
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = in.data;
  copy.srcPitch = 32;
  copy.srcXInBytes = 8;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address;
  copy.dstPitch = 16;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  ASSERT_EQ(cu("cuMemcpy2D_v2", static_cast<CUDA_MEMCPY2D const*>(&copy)), CUDA_SUCCESS);
  int max_pitch = 0;
  ASSERT_EQ(cu("cuDeviceGetAttribute", &max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_GE(max_pitch, 1 << 20);
  auto too_far = copy;
  too_far.dstPitch = static_cast<std::size_t>(max_pitch) + 1;
  EXPECT_EQ(cu("cuMemcpy2D_v2", static_cast<CUDA_MEMCPY2D const*>(&too_far)), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(back.data), address, std::size_t{64}), CUDA_SUCCESS);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(back.data[i], (i / 4) * 8 + 2 + i % 4);
  free(address);
}

// Guide, Stream Ordered Memory Allocator.
TEST_F(Driver, allocates_in_stream_order) {
  auto const s = stream();
  Pinned back(many);
  CUdeviceptr address = 0;
  ASSERT_EQ(cu("cuMemAllocAsync", &address, many * sizeof(int), s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 9U, many, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, back.bytes(), s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemFreeAsync", address, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  EXPECT_EQ(back.data[many - 1], 9);
  destroy(s);
}

// API, Memory Management, cuIpcGetMemHandle: memory of the stream-ordered allocator has no handle.
TEST_F(Driver, exports_no_handle_of_pool_memory) {
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(cu("cuMemAllocAsync", &address, std::size_t{4096}, CUstream{}), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuIpcGetMemHandle", &handle, address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu("cuMemFreeAsync", address, CUstream{}), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
}

// API, Unified Addressing: attributes of device, pinned and ordinary memory.
TEST_F(Driver, tells_kinds_of_pointers) {
  auto const address = allocate(4096);
  unsigned type = 0;
  int ordinal = -1;
  EXPECT_EQ(cu("cuPointerGetAttribute", static_cast<void*>(&type), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 8),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(cu("cuPointerGetAttribute", static_cast<void*>(&ordinal), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(cu("cuPointerGetAttribute", static_cast<void*>(&type), CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
               static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(&type))),
            CUDA_ERROR_INVALID_VALUE);
  free(address);
}

// API, Virtual Memory Management: create, map, give access, export a descriptor and import it again.
TEST_F(Driver, maps_physical_memory_and_exports_it) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::size_t size = 0;
  ASSERT_EQ(cu("cuMemGetAllocationGranularity", &size, static_cast<CUmemAllocationProp const*>(&properties),
               CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu("cuMemCreate", &handle, size, static_cast<CUmemAllocationProp const*>(&properties), 0ULL), CUDA_SUCCESS);
  int descriptor = -1;
  ASSERT_EQ(cu("cuMemExportToShareableHandle", static_cast<void*>(&descriptor), handle,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ULL),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(
      cu("cuMemImportFromShareableHandle", &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_SUCCESS);
  ::close(descriptor);
  CUdeviceptr places[2] = {};
  CUmemGenericAllocationHandle const handles[2] = {handle, imported};
  CUmemAccessDesc const access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cu("cuMemAddressReserve", &places[i], size, std::size_t{0}, CUdeviceptr{0}, 0ULL), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemMap", places[i], size, std::size_t{0}, handles[i], 0ULL), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemSetAccess", places[i], size, &access, std::size_t{1}), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemRelease", handles[i]), CUDA_SUCCESS);
  }
  int value = 0;
  ASSERT_EQ(cu("cuMemsetD32_v2", places[0], 5U, std::size_t{16}), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(&value), places[1], sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(value, 5);
  for (auto const place : places) {
    EXPECT_EQ(cu("cuMemUnmap", place, size), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuMemAddressFree", place, size), CUDA_SUCCESS);
  }
}

// API, cuGetProcAddress: the variant of a function for a version, and one that is not there.
TEST_F(Driver, finds_functions_by_version) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  ASSERT_EQ(cu("cuGetProcAddress_v2", "cuMemAlloc", &function, 12000, cuuint64_t{0}, &status), CUDA_SUCCESS);
  EXPECT_NE(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  ASSERT_EQ(cu("cuGetProcAddress_v2", "cuNothing", &function, 12000, cuuint64_t{0}, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  ASSERT_EQ(cu("cuGetProcAddress_v2", "cuMemAllocAsync", &function, 10000, cuuint64_t{0}, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

// API, Execution Control, cuLaunchHostFunc: runs in stream order and may not call CUDA.
TEST_F(Driver, runs_host_functions_in_order) {
  auto const s = stream();
  CUresult inside = CUDA_SUCCESS;
  CUhostFn const function = [](void* data) {
    CUdevice device = 0;
    *static_cast<CUresult*>(data) = cu("cuDeviceGet", &device, 0);
  };
  ASSERT_EQ(cu("cuLaunchHostFunc", s, function, static_cast<void*>(&inside)), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  if (!real()) forget_reports();
  destroy(s);
}

// Guide, Asynchronous Concurrent Execution: after fork, the child may not use CUDA.
TEST_F(Driver, refuses_calls_after_fork) {
  if (pid_t const child = ::fork(); child == 0) {
    CUdeviceptr address = 0;
    ::_exit(cu("cuMemAlloc_v2", &address, std::size_t{64}) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  } else {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace device_test
