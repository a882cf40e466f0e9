// Compares the product's own declarations of the CUDA driver with the vendor's header. It is compiled only; see abi.sh.
#include <cuda.h>

#include <cstddef>

#include "lib/device/cuda/driver_api.hpp"
#include "tests/device/same_signature.hpp"

namespace api = crossrank::cuda::api;
#define SAME(ours, vendors) static_assert(static_cast<long long>(api::ours) == static_cast<long long>(vendors))
SAME(Result::success, CUDA_SUCCESS);
SAME(Result::invalid_value, CUDA_ERROR_INVALID_VALUE);
SAME(Result::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(Result::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(Result::deinitialized, CUDA_ERROR_DEINITIALIZED);
SAME(Result::stub_library, CUDA_ERROR_STUB_LIBRARY);
SAME(Result::no_device, CUDA_ERROR_NO_DEVICE);
SAME(Result::invalid_device, CUDA_ERROR_INVALID_DEVICE);
SAME(Result::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(Result::nvlink_uncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
#if CUDA_VERSION >= 12090
SAME(Result::contained, CUDA_ERROR_CONTAINED);
#endif
SAME(Result::not_found, CUDA_ERROR_NOT_FOUND);
SAME(Result::not_ready, CUDA_ERROR_NOT_READY);
SAME(Result::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(Result::launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(Result::peer_access_already_enabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(Result::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(Result::device_assert, CUDA_ERROR_ASSERT);
SAME(Result::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(Result::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(Result::hardware_stack_error, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME(Result::illegal_instruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME(Result::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(Result::invalid_address_space, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME(Result::invalid_pc, CUDA_ERROR_INVALID_PC);
SAME(Result::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
SAME(Result::not_supported, CUDA_ERROR_NOT_SUPPORTED);
SAME(Result::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
SAME(Result::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(Result::compat_not_supported_on_device, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
SAME(Result::stream_capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(Result::stream_capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(Result::stream_capture_merge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME(Result::stream_capture_unmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(Result::stream_capture_unjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(Result::stream_capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(Result::stream_capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(Result::captured_event, CUDA_ERROR_CAPTURED_EVENT);
SAME(Result::stream_capture_wrong_thread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
#if CUDA_VERSION >= 11040
SAME(Result::external_device, CUDA_ERROR_EXTERNAL_DEVICE);
#endif
SAME(Result::unknown, CUDA_ERROR_UNKNOWN);

SAME(DeviceAttribute::max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
SAME(DeviceAttribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DeviceAttribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DeviceAttribute::read_only_host_register_supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(DeviceAttribute::memory_pools_supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);

SAME(PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(PointerAttribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(PointerAttribute::is_legacy_ipc_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(PointerAttribute::pool_handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);

SAME(MemoryType::host, CU_MEMORYTYPE_HOST);
SAME(MemoryType::device, CU_MEMORYTYPE_DEVICE);
SAME(MemoryType::array, CU_MEMORYTYPE_ARRAY);
SAME(MemoryType::unified, CU_MEMORYTYPE_UNIFIED);

SAME(PoolAttribute::release_threshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);

SAME(CaptureStatus::none, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);

SAME(CaptureMode::global, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CaptureMode::thread_local_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);

SAME(AllocationType::pinned, CU_MEM_ALLOCATION_TYPE_PINNED);

SAME(HandleType::none, CU_MEM_HANDLE_TYPE_NONE);
SAME(HandleType::posix_file_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

SAME(LocationType::device, CU_MEM_LOCATION_TYPE_DEVICE);

SAME(stream_non_blocking, CU_STREAM_NON_BLOCKING);
SAME(wait_value_reached, CU_STREAM_WAIT_VALUE_GEQ);
SAME(event_disable_timing, CU_EVENT_DISABLE_TIMING);
SAME(host_alloc_portable, CU_MEMHOSTALLOC_PORTABLE);
SAME(ipc_lazy_peer_access, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(host_register_portable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(host_register_read_only, CU_MEMHOSTREGISTER_READ_ONLY);

#define SAME_SIZE(ours, vendors) static_assert(sizeof(api::ours) == sizeof(vendors))
#define SAME_OFFSET(ours, field, vendors, vendors_field) \
  static_assert(offsetof(api::ours, field) == offsetof(vendors, vendors_field))
// For a field that older headers lack.
#define SAME_OFFSET_IF_THERE(ours, field, vendors, vendors_field)            \
  static_assert([]<class Vendors>(Vendors const*) {                          \
    if constexpr (requires(Vendors v) { v.vendors_field; })                  \
      return offsetof(api::ours, field) == offsetof(Vendors, vendors_field); \
    else                                                                     \
      return true;                                                           \
  }(static_cast<vendors const*>(nullptr)))
SAME_SIZE(Uuid, CUuuid);
SAME_SIZE(IpcMemoryHandle, CUipcMemHandle);
SAME_SIZE(MemoryLocation, CUmemLocation);
SAME_OFFSET(MemoryLocation, type, CUmemLocation, type);
SAME_OFFSET(MemoryLocation, id, CUmemLocation, id);
SAME_SIZE(PoolProperties, CUmemPoolProps);
SAME_OFFSET(PoolProperties, allocation, CUmemPoolProps, allocType);
SAME_OFFSET(PoolProperties, handles, CUmemPoolProps, handleTypes);
SAME_OFFSET(PoolProperties, location, CUmemPoolProps, location);
SAME_OFFSET(PoolProperties, win32_security_attributes, CUmemPoolProps, win32SecurityAttributes);
SAME_OFFSET_IF_THERE(PoolProperties, max_size, CUmemPoolProps, maxSize);
SAME_OFFSET_IF_THERE(PoolProperties, usage, CUmemPoolProps, usage);
SAME_SIZE(Copy2d, CUDA_MEMCPY2D);
SAME_OFFSET(Copy2d, from_x, CUDA_MEMCPY2D, srcXInBytes);
SAME_OFFSET(Copy2d, from_y, CUDA_MEMCPY2D, srcY);
SAME_OFFSET(Copy2d, from_type, CUDA_MEMCPY2D, srcMemoryType);
SAME_OFFSET(Copy2d, from_host, CUDA_MEMCPY2D, srcHost);
SAME_OFFSET(Copy2d, from_device, CUDA_MEMCPY2D, srcDevice);
SAME_OFFSET(Copy2d, from_array, CUDA_MEMCPY2D, srcArray);
SAME_OFFSET(Copy2d, from_pitch, CUDA_MEMCPY2D, srcPitch);
SAME_OFFSET(Copy2d, to_x, CUDA_MEMCPY2D, dstXInBytes);
SAME_OFFSET(Copy2d, to_y, CUDA_MEMCPY2D, dstY);
SAME_OFFSET(Copy2d, to_type, CUDA_MEMCPY2D, dstMemoryType);
SAME_OFFSET(Copy2d, to_host, CUDA_MEMCPY2D, dstHost);
SAME_OFFSET(Copy2d, to_device, CUDA_MEMCPY2D, dstDevice);
SAME_OFFSET(Copy2d, to_array, CUDA_MEMCPY2D, dstArray);
SAME_OFFSET(Copy2d, to_pitch, CUDA_MEMCPY2D, dstPitch);
SAME_OFFSET(Copy2d, width, CUDA_MEMCPY2D, WidthInBytes);
SAME_OFFSET(Copy2d, height, CUDA_MEMCPY2D, Height);

#define FUNCTIONS(F)                   \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceTotalMem_v2)               \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceGetPCIBusId)               \
  F(cuDeviceCanAccessPeer)             \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuCtxPushCurrent_v2)               \
  F(cuCtxPopCurrent_v2)                \
  F(cuCtxGetCurrent)                   \
  F(cuMemGetInfo_v2)                   \
  F(cuMemAlloc_v2)                     \
  F(cuMemFree_v2)                      \
  F(cuMemGetAddressRange_v2)           \
  F(cuPointerGetAttribute)             \
  F(cuMemHostAlloc)                    \
  F(cuMemFreeHost)                     \
  F(cuMemHostRegister_v2)              \
  F(cuMemHostUnregister)               \
  F(cuMemcpyHtoDAsync_v2)              \
  F(cuMemcpyDtoHAsync_v2)              \
  F(cuMemcpyDtoDAsync_v2)              \
  F(cuMemcpyPeerAsync)                 \
  F(cuMemcpy2DAsync_v2)                \
  F(cuMemsetD8Async)                   \
  F(cuStreamCreateWithPriority)        \
  F(cuStreamDestroy_v2)                \
  F(cuStreamQuery)                     \
  F(cuStreamWaitEvent)                 \
  F(cuStreamIsCapturing)               \
  F(cuEventCreate)                     \
  F(cuEventDestroy_v2)                 \
  F(cuEventRecord)                     \
  F(cuEventQuery)                      \
  F(cuMemPoolCreate)                   \
  F(cuMemPoolTrimTo)                   \
  F(cuMemPoolSetAttribute)             \
  F(cuMemAllocFromPoolAsync)           \
  F(cuMemFreeAsync)                    \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuStreamBeginCapture_v2)           \
  F(cuStreamEndCapture)                \
  F(cuGraphInstantiateWithFlags)       \
  F(cuGraphLaunch)                     \
  F(cuGraphDestroy)                    \
  F(cuGraphExecDestroy)                \
  F(cuModuleLoadData)                  \
  F(cuModuleUnload)                    \
  F(cuModuleGetFunction)               \
  F(cuLaunchKernel)                    \
  F(cuIpcGetMemHandle)                 \
  F(cuIpcOpenMemHandle_v2)             \
  F(cuIpcCloseMemHandle)               \
  F(cuStreamWaitValue32_v2)            \
  F(cuDeviceGetUuid_v2)

#define SAME_FUNCTION(name) \
  static_assert(device_test::same_signature<decltype(api::Functions::name), decltype(&::name)>());
FUNCTIONS(SAME_FUNCTION)

#define COUNT(name) +1
static_assert(sizeof(api::Functions) == (0 FUNCTIONS(COUNT)) * sizeof(void (*)()), "a function is not in the list");
