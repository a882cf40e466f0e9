#pragma once
#include <cstddef>

// The opaque types of nccl.h and cuda.h, so that these headers can be included together.
struct ncclComm;
struct ncclWindow_vidmem;
struct CUstream_st;

/// Our own declarations of the part of NCCL that the library calls, so that no build needs NCCL.
///
/// The binary interface is the same from NCCL 2.18 on. Members of `Functions` have the names of the exported symbols.
/// `Device.declarations_match_the_vendor` compares them, and those of the emulated NCCL, with the vendor's header where
/// one is installed.
namespace crossrank::nccl::api {

using Comm = ncclComm;
using Window = ncclWindow_vidmem;

/// ncclResult_t.
enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

/// ncclDataType_t.
enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

/// ncclRedOp_t.
enum class RedOp : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

/// ncclUniqueId.
struct UniqueId {
  char bytes[128];
};

inline constexpr int undefined_int = -2147483647 - 1;  // NCCL_CONFIG_UNDEF_INT

/// The first members of ncclConfig_t, which all versions from 2.18 on accept: `size` says how much of it there is. The
/// last member lies in what is padding before NCCL 2.26, which reads it from a configuration of this size.
struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  char const* net_name;
  int split_share;
  int traffic_class;
};
static_assert(sizeof(Config) == 48);

inline constexpr unsigned config_magic = 0xCAFEBEEF;
inline constexpr int oldest_version = 21800;  // NCCL_VERSION(2, 18, 0)

/// The functions of NCCL. The optional ones are null when the library is too old to have them.
struct Functions {
  Result (*ncclGetVersion)(int* version);
  Result (*ncclGetUniqueId)(UniqueId* id);
  char const* (*ncclGetErrorString)(Result result);
  char const* (*ncclGetLastError)(Comm* comm);

  Result (*ncclCommInitRankConfig)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*ncclCommFinalize)(Comm* comm);
  Result (*ncclCommDestroy)(Comm* comm);
  Result (*ncclCommAbort)(Comm* comm);
  Result (*ncclCommGetAsyncError)(Comm* comm, Result* error);
  Result (*ncclCommCount)(Comm* comm, int* ranks);

  Result (*ncclGroupStart)();
  Result (*ncclGroupEnd)();
  Result (*ncclAllReduce)(void const* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                          CUstream_st* stream);
  Result (*ncclReduce)(void const* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm* comm,
                       CUstream_st* stream);
  Result (*ncclBroadcast)(void const* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                          CUstream_st* stream);
  Result (*ncclAllGather)(void const* in, void* out, std::size_t count, DataType type, Comm* comm, CUstream_st* stream);
  Result (*ncclReduceScatter)(void const* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                              CUstream_st* stream);
  Result (*ncclSend)(void const* in, std::size_t count, DataType type, int peer, Comm* comm, CUstream_st* stream);
  Result (*ncclRecv)(void* out, std::size_t count, DataType type, int peer, Comm* comm, CUstream_st* stream);

  // Optional: collectives of one call, since 2.28. Without them, grouped sends and receives do the same.
  Result (*ncclAlltoAll)(void const* in, void* out, std::size_t count, DataType type, Comm* comm, CUstream_st* stream);
  Result (*ncclGather)(void const* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                       CUstream_st* stream);
  Result (*ncclScatter)(void const* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                        CUstream_st* stream);

  // Optional: memory that NCCL uses without copies of its own: since 2.19, and windows of all ranks since 2.27.
  Result (*ncclMemAlloc)(void** data, std::size_t bytes);
  Result (*ncclMemFree)(void* data);
  Result (*ncclCommRegister)(Comm* comm, void* data, std::size_t bytes, void** handle);
  Result (*ncclCommDeregister)(Comm* comm, void* handle);
  Result (*ncclCommWindowRegister)(Comm* comm, void* data, std::size_t bytes, Window** window, int flags);
  Result (*ncclCommWindowDeregister)(Comm* comm, Window* window);
};

}  // namespace crossrank::nccl::api
