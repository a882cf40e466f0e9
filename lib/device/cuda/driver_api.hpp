#pragma once
#include <cstddef>
#include <cstdint>

// The opaque types of cuda.h, so that both headers can be included together.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmemPoolHandle_st;
struct CUmod_st;
struct CUstream_st;
struct CUarray_st;

/// Our own declarations of the part of the CUDA driver API that the library calls, so that no build needs CUDA.
///
/// The binary interface is the same from CUDA 11 to 13. Members of `Functions` have the names of the exported symbols.
/// `Device.declarations_match_the_vendor` compares them, and those of the emulated driver, with the vendor's header
/// where one is installed.
namespace crossrank::cuda::api {

using DevicePointer = unsigned long long;
[[nodiscard]] inline DevicePointer device_address(void const* data) noexcept {
  return reinterpret_cast<DevicePointer>(data);
}

/// CUresult, as far as the library distinguishes its values.
enum class Result : unsigned {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  no_device = 100,
  invalid_device = 101,
  ecc_uncorrectable = 214,
  nvlink_uncorrectable = 220,
  contained = 226,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_timeout = 702,
  peer_access_already_enabled = 704,
  context_is_destroyed = 709,
  device_assert = 710,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  compat_not_supported_on_device = 804,
  stream_capture_unsupported = 900,
  stream_capture_invalidated = 901,
  stream_capture_merge = 902,
  stream_capture_unmatched = 903,
  stream_capture_unjoined = 904,
  stream_capture_isolation = 905,
  stream_capture_implicit = 906,
  captured_event = 907,
  stream_capture_wrong_thread = 908,
  external_device = 911,
  unknown = 999,
};

/// CUdevice_attribute.
enum class DeviceAttribute : unsigned {
  max_pitch = 11,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  read_only_host_register_supported = 113,
  memory_pools_supported = 115,
};

/// CUpointer_attribute.
enum class PointerAttribute : unsigned {
  memory_type = 2,
  is_managed = 8,
  device_ordinal = 9,
  is_legacy_ipc_capable = 10,
  pool_handle = 17,
};

/// CUmemorytype.
enum class MemoryType : unsigned { host = 1, device = 2, array = 3, unified = 4 };

/// CUmemPool_attribute.
enum class PoolAttribute : unsigned { release_threshold = 4 };

/// CUstreamCaptureStatus.
enum class CaptureStatus : unsigned { none = 0, active = 1, invalidated = 2 };

/// CUstreamCaptureMode.
enum class CaptureMode : unsigned { global = 0, thread_local_ = 1, relaxed = 2 };

/// CUmemAllocationType.
enum class AllocationType : unsigned { pinned = 1 };
/// CUmemAllocationHandleType.
enum class HandleType : unsigned { none = 0, posix_file_descriptor = 1 };
/// CUmemLocationType.
enum class LocationType : unsigned { device = 1 };

inline constexpr unsigned stream_non_blocking = 1;         // CU_STREAM_NON_BLOCKING
inline constexpr unsigned wait_value_reached = 0;          // CU_STREAM_WAIT_VALUE_GEQ
inline constexpr unsigned event_disable_timing = 2;        // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned host_alloc_portable = 1;         // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned ipc_lazy_peer_access = 1;        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr unsigned host_register_portable = 1;      // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned host_register_read_only = 0x08;  // CU_MEMHOSTREGISTER_READ_ONLY

/// CUuuid.
struct Uuid {
  char bytes[16];
};

/// CUipcMemHandle.
struct IpcMemoryHandle {
  char reserved[64];
};

/// CUmemLocation.
struct MemoryLocation {
  LocationType type;
  int id;
};

/// CUmemPoolProps.
struct PoolProperties {
  AllocationType allocation;
  HandleType handles;
  MemoryLocation location;
  void* win32_security_attributes;
  std::size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};

/// CUDA_MEMCPY2D.
struct Copy2d {
  std::size_t from_x;
  std::size_t from_y;
  MemoryType from_type;
  void const* from_host;
  DevicePointer from_device;
  CUarray_st* from_array;
  std::size_t from_pitch;
  std::size_t to_x;
  std::size_t to_y;
  MemoryType to_type;
  void* to_host;
  DevicePointer to_device;
  CUarray_st* to_array;
  std::size_t to_pitch;
  std::size_t width;
  std::size_t height;
};

/// The functions of the driver. The optional ones are null when the driver is too old to have them.
struct Functions {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuGetErrorName)(Result error, char const** name);
  Result (*cuGetErrorString)(Result error, char const** text);

  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(int* device, int ordinal);
  Result (*cuDeviceGetName)(char* name, int length, int device);
  Result (*cuDeviceTotalMem_v2)(std::size_t* bytes, int device);
  Result (*cuDeviceGetAttribute)(int* value, DeviceAttribute attribute, int device);
  Result (*cuDeviceGetPCIBusId)(char* text, int length, int device);
  Result (*cuDeviceCanAccessPeer)(int* can_access, int device, int peer);

  Result (*cuDevicePrimaryCtxRetain)(CUctx_st** context, int device);
  Result (*cuCtxPushCurrent_v2)(CUctx_st* context);
  Result (*cuCtxPopCurrent_v2)(CUctx_st** context);
  Result (*cuCtxGetCurrent)(CUctx_st** context);

  Result (*cuMemGetInfo_v2)(std::size_t* free, std::size_t* total);
  Result (*cuMemAlloc_v2)(DevicePointer* data, std::size_t bytes);
  Result (*cuMemFree_v2)(DevicePointer data);
  Result (*cuMemGetAddressRange_v2)(DevicePointer* base, std::size_t* bytes, DevicePointer data);
  Result (*cuPointerGetAttribute)(void* value, PointerAttribute attribute, DevicePointer data);
  Result (*cuMemHostAlloc)(void** data, std::size_t bytes, unsigned flags);
  Result (*cuMemFreeHost)(void* data);
  Result (*cuMemHostRegister_v2)(void* data, std::size_t bytes, unsigned flags);
  Result (*cuMemHostUnregister)(void* data);

  Result (*cuMemcpyHtoDAsync_v2)(DevicePointer to, void const* from, std::size_t bytes, CUstream_st* stream);
  Result (*cuMemcpyDtoHAsync_v2)(void* to, DevicePointer from, std::size_t bytes, CUstream_st* stream);
  Result (*cuMemcpyDtoDAsync_v2)(DevicePointer to, DevicePointer from, std::size_t bytes, CUstream_st* stream);
  Result (*cuMemcpyPeerAsync)(DevicePointer to, CUctx_st* to_context, DevicePointer from, CUctx_st* from_context,
                              std::size_t bytes, CUstream_st* stream);
  Result (*cuMemcpy2DAsync_v2)(Copy2d const* copy, CUstream_st* stream);
  Result (*cuMemsetD8Async)(DevicePointer to, unsigned char value, std::size_t bytes, CUstream_st* stream);

  Result (*cuStreamCreateWithPriority)(CUstream_st** stream, unsigned flags, int priority);
  Result (*cuStreamDestroy_v2)(CUstream_st* stream);
  Result (*cuStreamQuery)(CUstream_st* stream);
  Result (*cuStreamWaitEvent)(CUstream_st* stream, CUevent_st* event, unsigned flags);
  Result (*cuStreamIsCapturing)(CUstream_st* stream, CaptureStatus* status);
  Result (*cuEventCreate)(CUevent_st** event, unsigned flags);
  Result (*cuEventDestroy_v2)(CUevent_st* event);
  Result (*cuEventRecord)(CUevent_st* event, CUstream_st* stream);
  Result (*cuEventQuery)(CUevent_st* event);

  // Optional: memory pools, since 11.2.
  Result (*cuMemPoolCreate)(CUmemPoolHandle_st** pool, PoolProperties const* properties);
  Result (*cuMemPoolTrimTo)(CUmemPoolHandle_st* pool, std::size_t bytes_to_keep);
  Result (*cuMemPoolSetAttribute)(CUmemPoolHandle_st* pool, PoolAttribute attribute, void* value);
  Result (*cuMemAllocFromPoolAsync)(DevicePointer* data, std::size_t bytes, CUmemPoolHandle_st* pool,
                                    CUstream_st* stream);
  Result (*cuMemFreeAsync)(DevicePointer data, CUstream_st* stream);

  // Optional: lets a thread query events, allocate and free while another one captures a graph, since 10.1.
  Result (*cuThreadExchangeStreamCaptureMode)(CaptureMode* mode);

  // Optional: graphs, since 10.1 and, to instantiate them with flags, 11.4.
  Result (*cuStreamBeginCapture_v2)(CUstream_st* stream, CaptureMode mode);
  Result (*cuStreamEndCapture)(CUstream_st* stream, CUgraph_st** graph);
  Result (*cuGraphInstantiateWithFlags)(CUgraphExec_st** executable, CUgraph_st* graph, unsigned long long flags);
  Result (*cuGraphLaunch)(CUgraphExec_st* executable, CUstream_st* stream);
  Result (*cuGraphDestroy)(CUgraph_st* graph);
  Result (*cuGraphExecDestroy)(CUgraphExec_st* executable);

  // Optional: kernels.
  Result (*cuModuleLoadData)(CUmod_st** module, void const* image);
  Result (*cuModuleUnload)(CUmod_st* module);
  Result (*cuModuleGetFunction)(CUfunc_st** function, CUmod_st* module, char const* name);
  Result (*cuLaunchKernel)(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream,
                           void** arguments, void** extra);

  // Optional: memory that several processes use.
  Result (*cuIpcGetMemHandle)(IpcMemoryHandle* handle, DevicePointer data);
  Result (*cuIpcOpenMemHandle_v2)(DevicePointer* data, IpcMemoryHandle handle, unsigned flags);
  Result (*cuIpcCloseMemHandle)(DevicePointer data);

  // Optional: streams that wait for a word in memory, since 11.7.
  Result (*cuStreamWaitValue32_v2)(CUstream_st* stream, DevicePointer word, unsigned value, unsigned flags);

  // Optional: identity of devices that does not change in a virtual machine, since 11.4.
  Result (*cuDeviceGetUuid_v2)(Uuid* uuid, int device);
};

}  // namespace crossrank::cuda::api
