// Groups: what is called between ncclGroupStart and ncclGroupEnd is done together at the end.
#pragma once

#include <functional>

#include "tests/support/emulated_gpu/nccl/kernel.hpp"

namespace emulated::nccl {

/// Adds an operation to the open group, or makes a group of it alone.
ncclResult_t add(std::shared_ptr<Communicator> comm, cudaStream_t stream, Operation operation);

/// Adds work of the host on a communicator, such as making it: at the end of the group, or at once. A communicator that
/// does not block gets it done by a thread, and its state tells when.
ncclResult_t add_job(std::shared_ptr<Communicator> comm, std::function<void()> job);

}  // namespace emulated::nccl
