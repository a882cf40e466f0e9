// The kernels: all operations of one group on one communicator, as one piece of work on a stream.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/emulated_gpu/nccl/communicator.hpp"

namespace emulated::nccl {

enum class Kind {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

struct Operation {
  Kind kind;
  CUdeviceptr send = 0;
  CUdeviceptr receive = 0;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // root, or partner
};

/// Puts the operations on the stream as one kernel.
ncclResult_t enqueue(std::shared_ptr<Communicator> const& comm, cudaStream_t stream, std::vector<Operation> operations);

}  // namespace emulated::nccl
