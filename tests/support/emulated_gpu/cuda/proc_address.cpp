// cuGetProcAddress and the texts of errors.
#include <dlfcn.h>

#include <array>
#include <string>
#include <string_view>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

/// Which variant of a function a version of the API means. A row says from which version on the exported name serves.
struct Variant {
  std::string_view name;
  int since;
  char const* exported;
};
constexpr std::array variants = {
    Variant{"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    Variant{"cuGetProcAddress", 11030, "cuGetProcAddress"},
    Variant{"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    Variant{"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    Variant{"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    Variant{"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    Variant{"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    Variant{"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    Variant{"cuMemAllocAsync", 11020, "cuMemAllocAsync"},
    Variant{"cuMemFreeAsync", 11020, "cuMemFreeAsync"},
    Variant{"cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync"},
    Variant{"cuMemPoolCreate", 11020, "cuMemPoolCreate"},
    Variant{"cuMemPoolDestroy", 11020, "cuMemPoolDestroy"},
    Variant{"cuMemPoolTrimTo", 11020, "cuMemPoolTrimTo"},
    Variant{"cuMemPoolSetAttribute", 11020, "cuMemPoolSetAttribute"},
    Variant{"cuMemPoolGetAttribute", 11020, "cuMemPoolGetAttribute"},
    Variant{"cuMemPoolSetAccess", 11020, "cuMemPoolSetAccess"},
    Variant{"cuMemPoolGetAccess", 11020, "cuMemPoolGetAccess"},
    Variant{"cuDeviceGetDefaultMemPool", 11020, "cuDeviceGetDefaultMemPool"},
    Variant{"cuDeviceGetMemPool", 11020, "cuDeviceGetMemPool"},
    Variant{"cuDeviceSetMemPool", 11020, "cuDeviceSetMemPool"},
    Variant{"cuEventRecordWithFlags", 11010, "cuEventRecordWithFlags"},
    Variant{"cuStreamGetId", 12000, "cuStreamGetId"},
    Variant{"cuStreamGetDevice", 12080, "cuStreamGetDevice"},
};

void* exported(std::string const& name) {
  Dl_info info{};
  static int const anchor = 0;
  if (::dladdr(&anchor, &info) == 0) return nullptr;
  static void* const self = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  return self == nullptr ? nullptr : ::dlsym(self, name.c_str());
}

CUdriverProcAddressQueryResult look_up(char const* symbol, void** function, int version) {
  *function = nullptr;
  int const driver = options().driver_version;
  bool listed = false;
  for (auto const& variant : variants) {
    if (variant.name != symbol) continue;
    listed = true;
    if (version < variant.since || driver < variant.since) continue;
    *function = exported(variant.exported);
    return *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  bool const older = std::string_view(symbol) == "cuDeviceGetUuid" || std::string_view(symbol) == "cuEventElapsedTime";
  if (!listed || older) {
    *function = exported(std::string(symbol) + "_v2");
    if (*function == nullptr || older) *function = exported(symbol);
    return *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
}

struct ErrorText {
  CUresult code;
  char const* name;
  char const* text;
};
#define EMULATED_ERROR(code, text) \
  ErrorText { code, #code, text }
constexpr std::array errors = {
    EMULATED_ERROR(CUDA_SUCCESS, "no error"),
    EMULATED_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    EMULATED_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    EMULATED_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    EMULATED_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    EMULATED_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    EMULATED_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    EMULATED_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    EMULATED_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    EMULATED_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    EMULATED_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    EMULATED_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    EMULATED_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    EMULATED_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    EMULATED_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    EMULATED_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    EMULATED_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    EMULATED_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    EMULATED_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    EMULATED_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    EMULATED_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                   "part or all of the requested memory range is already mapped"),
    EMULATED_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    EMULATED_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    EMULATED_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    EMULATED_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    EMULATED_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                   "operation would make the legacy stream depend on a capturing blocking stream"),
    EMULATED_ERROR(CUDA_ERROR_CAPTURED_EVENT,
                   "operation not permitted on an event last recorded in a capturing stream"),
    EMULATED_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                   "attempt to terminate a thread-local capture sequence from another thread"),
    EMULATED_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef EMULATED_ERROR

ErrorText const* find_error(CUresult code) {
  for (auto const& error : errors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuGetProcAddress_v2(char const* symbol, void** function, int version, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
  return call("cuGetProcAddress_v2", Needs::nothing, [&] {
    require(symbol != nullptr && function != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto const found = look_up(symbol, function, version);
    if (status != nullptr) *status = found;
    require(found == CU_GET_PROC_ADDRESS_SUCCESS || status != nullptr, CUDA_ERROR_NOT_FOUND);
  });
}

CUresult cuGetProcAddress(char const* symbol, void** function, int version, cuuint64_t) {
  return call("cuGetProcAddress", Needs::nothing, [&] {
    require(symbol != nullptr && function != nullptr, CUDA_ERROR_INVALID_VALUE);
    require(look_up(symbol, function, version) == CU_GET_PROC_ADDRESS_SUCCESS, CUDA_ERROR_NOT_FOUND);
  });
}

CUresult cuGetErrorName(CUresult code, char const** text) {
  auto const* const error = find_error(code);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error != nullptr ? error->name : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, char const** text) {
  auto const* const error = find_error(code);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error != nullptr ? error->text : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}
