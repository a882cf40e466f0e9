// The collective operations and point-to-point messages.
#include "tests/support/emulated_gpu/nccl/group.hpp"
#include "tests/support/emulated_gpu/nccl/reduction.hpp"

namespace emulated::nccl {
namespace {

CUdeviceptr address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

ncclResult_t post(char const* name, ncclComm_t handle, cudaStream_t stream, Operation operation) {
  return call(name, [&] {
    auto comm = ready(handle);
    demand(size_of(operation.type) != 0, ncclInvalidArgument, "unknown data type");
    demand(operation.op >= ncclSum && operation.op < ncclNumOps, ncclInvalidArgument, "unknown operation");
    demand(operation.peer >= 0 && operation.peer < comm->size, ncclInvalidArgument, "the rank does not exist");
    return add(std::move(comm), stream, operation);
  });
}

}  // namespace
}  // namespace emulated::nccl

using namespace emulated::nccl;

extern "C" {

ncclResult_t ncclAllReduce(void const* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return post("ncclAllReduce", comm, stream, {Kind::all_reduce, address(send), address(receive), count, type, op, 0});
}
ncclResult_t ncclReduce(void const* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return post("ncclReduce", comm, stream, {Kind::reduce, address(send), address(receive), count, type, op, root});
}
ncclResult_t ncclBroadcast(void const* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return post("ncclBroadcast", comm, stream,
              {Kind::broadcast, address(send), address(receive), count, type, ncclSum, root});
}
ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return post("ncclBcast", comm, stream,
              {Kind::broadcast, address(buffer), address(buffer), count, type, ncclSum, root});
}
ncclResult_t ncclAllGather(void const* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return post("ncclAllGather", comm, stream,
              {Kind::all_gather, address(send), address(receive), count, type, ncclSum, 0});
}
ncclResult_t ncclReduceScatter(void const* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return post("ncclReduceScatter", comm, stream,
              {Kind::reduce_scatter, address(send), address(receive), count, type, op, 0});
}
ncclResult_t ncclSend(void const* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post("ncclSend", comm, stream, {Kind::send, address(send), 0, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post("ncclRecv", comm, stream, {Kind::receive, 0, address(receive), count, type, ncclSum, peer});
}
ncclResult_t ncclAlltoAll(void const* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return post("ncclAlltoAll", comm, stream,
              {Kind::all_to_all, address(send), address(receive), count, type, ncclSum, 0});
}
ncclResult_t ncclGather(void const* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return post("ncclGather", comm, stream, {Kind::gather, address(send), address(receive), count, type, ncclSum, root});
}
ncclResult_t ncclScatter(void const* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return post("ncclScatter", comm, stream,
              {Kind::scatter, address(send), address(receive), count, type, ncclSum, root});
}
}
