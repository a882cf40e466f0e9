// Compares the product's own declarations of NCCL with the vendor's header. It is compiled only; see abi.sh.
#include <nccl.h>

#include <cstddef>

#include "collectives/nccl/nccl_api.hpp"
#include "tests/device/same_signature.hpp"

namespace api = crossrank::nccl::api;
#define SAME(ours, vendors) static_assert(static_cast<long long>(api::ours) == static_cast<long long>(vendors))
SAME(Result::success, ncclSuccess);
SAME(Result::unhandled_cuda_error, ncclUnhandledCudaError);
SAME(Result::system_error, ncclSystemError);
SAME(Result::internal_error, ncclInternalError);
SAME(Result::invalid_argument, ncclInvalidArgument);
SAME(Result::invalid_usage, ncclInvalidUsage);
SAME(Result::remote_error, ncclRemoteError);
SAME(Result::in_progress, ncclInProgress);

SAME(DataType::int8, ncclInt8);
SAME(DataType::uint8, ncclUint8);
SAME(DataType::int32, ncclInt32);
SAME(DataType::uint32, ncclUint32);
SAME(DataType::int64, ncclInt64);
SAME(DataType::uint64, ncclUint64);
SAME(DataType::float16, ncclFloat16);
SAME(DataType::float32, ncclFloat32);
SAME(DataType::float64, ncclFloat64);
SAME(DataType::bfloat16, ncclBfloat16);

SAME(RedOp::sum, ncclSum);
SAME(RedOp::prod, ncclProd);
SAME(RedOp::max, ncclMax);
SAME(RedOp::min, ncclMin);
SAME(RedOp::avg, ncclAvg);

SAME(undefined_int, NCCL_CONFIG_UNDEF_INT);
constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
static_assert(api::config_magic == initial.magic);
SAME(oldest_version, NCCL_VERSION(2, 18, 0));

#define SAME_SIZE(ours, vendors) static_assert(sizeof(api::ours) == sizeof(vendors))
#define SAME_OFFSET(ours, field, vendors, vendors_field) \
  static_assert(offsetof(api::ours, field) == offsetof(vendors, vendors_field))
SAME_SIZE(UniqueId, ncclUniqueId);
SAME_OFFSET(Config, size, ncclConfig_t, size);
SAME_OFFSET(Config, magic, ncclConfig_t, magic);
SAME_OFFSET(Config, version, ncclConfig_t, version);
SAME_OFFSET(Config, blocking, ncclConfig_t, blocking);
SAME_OFFSET(Config, cga_cluster_size, ncclConfig_t, cgaClusterSize);
SAME_OFFSET(Config, min_ctas, ncclConfig_t, minCTAs);
SAME_OFFSET(Config, max_ctas, ncclConfig_t, maxCTAs);
SAME_OFFSET(Config, net_name, ncclConfig_t, netName);
SAME_OFFSET(Config, split_share, ncclConfig_t, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
SAME_OFFSET(Config, traffic_class, ncclConfig_t, trafficClass);
#endif

// The functions by the first version that has them.
#define FUNCTIONS(F)        \
  F(ncclGetVersion)         \
  F(ncclGetUniqueId)        \
  F(ncclGetErrorString)     \
  F(ncclGetLastError)       \
  F(ncclCommInitRankConfig) \
  F(ncclCommFinalize)       \
  F(ncclCommDestroy)        \
  F(ncclCommAbort)          \
  F(ncclCommGetAsyncError)  \
  F(ncclCommCount)          \
  F(ncclGroupStart)         \
  F(ncclGroupEnd)           \
  F(ncclAllReduce)          \
  F(ncclReduce)             \
  F(ncclBroadcast)          \
  F(ncclAllGather)          \
  F(ncclReduceScatter)      \
  F(ncclSend)               \
  F(ncclRecv)
#define FUNCTIONS_2_19(F) \
  F(ncclMemAlloc)         \
  F(ncclMemFree)          \
  F(ncclCommRegister)     \
  F(ncclCommDeregister)
#define FUNCTIONS_2_27(F)   \
  F(ncclCommWindowRegister) \
  F(ncclCommWindowDeregister)
#define FUNCTIONS_2_28(F) \
  F(ncclAlltoAll)         \
  F(ncclGather)           \
  F(ncclScatter)

#define SAME_FUNCTION(name) \
  static_assert(device_test::same_signature<decltype(api::Functions::name), decltype(&::name)>());
FUNCTIONS(SAME_FUNCTION)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
FUNCTIONS_2_19(SAME_FUNCTION)
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
FUNCTIONS_2_27(SAME_FUNCTION)
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
FUNCTIONS_2_28(SAME_FUNCTION)
#endif

#define COUNT(name) +1
constexpr auto function_count = 0 FUNCTIONS(COUNT) FUNCTIONS_2_19(COUNT) FUNCTIONS_2_27(COUNT) FUNCTIONS_2_28(COUNT);
static_assert(sizeof(api::Functions) == function_count * sizeof(void (*)()), "a function is not in the lists");
