#include "tests/support/emulated_gpu/nccl/communicator.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "tests/support/emulated_gpu/nccl/version.hpp"

extern "C" CUresult cuDeviceGetUuid(CUuuid*, CUdevice);

namespace emulated::nccl {
namespace {

std::uint64_t host_identity() {
  char name[256] = {};
  static_cast<void>(::gethostname(name, sizeof name - 1));
  std::string identity = name;
  if (char const* const host = std::getenv("EMULATED_GPU_HOST"); host != nullptr) identity = host;
  if (char const* const host = std::getenv("NCCL_HOSTID"); host != nullptr) identity = host;
  return std::hash<std::string>{}(identity);
}

template <class T>
Blob blob_of(T const& value) {
  static_assert(sizeof(T) <= blob_size);
  Blob blob{};
  std::memcpy(blob.data(), &value, sizeof value);
  return blob;
}

}  // namespace

std::vector<int> Communicator::everyone() const {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<Blob> Communicator::exchange(Blob const& mine, std::vector<int> const& members) {
  auto blobs = shared->exchange(rank, ++round, mine, members, [this] { return aborted.load(); });
  demand(!blobs.empty(), ncclInternalError, "the communicator was aborted");
  return blobs;
}

void join(Communicator& comm, std::shared_ptr<MemoryFile> file) {
  demand(file != nullptr && file->size() == sizeof(SharedTable), ncclRemoteError, "the rank that drew the id is gone");
  comm.shared = std::make_shared<Shared>(std::move(file));
  auto& entry = comm.shared->table().ranks[static_cast<std::size_t>(comm.rank)];
  demand(entry.taken.exchange(1) == 0, ncclInvalidUsage, "the id was used for this rank before");
  Introduction mine{.uuid = {}, .host = host_identity(), .size = comm.size, .version = version()};
  CUuuid uuid;
  demand(cuDeviceGetUuid(&uuid, comm.device) == CUDA_SUCCESS, ncclUnhandledCudaError, "the device has no identity");
  std::memcpy(mine.uuid, uuid.bytes, sizeof mine.uuid);
  auto const blobs = comm.exchange(blob_of(mine), comm.everyone());
  for (int peer = 0; peer < comm.size; ++peer) {
    Introduction other;
    std::memcpy(&other, blobs[static_cast<std::size_t>(peer)].data(), sizeof other);
    demand(other.size == comm.size, ncclInvalidArgument, "ranks disagree about the number of ranks");
    demand(other.version == mine.version, ncclInvalidUsage, "mismatched NCCL version detected");
    bool const same = other.host == mine.host && std::memcmp(other.uuid, mine.uuid, sizeof mine.uuid) == 0;
    demand(peer == comm.rank || !same, ncclInvalidUsage, "duplicate GPU detected");
  }
}

namespace {

/// The communicator of the job that a call of this thread has left.
std::weak_ptr<Communicator>& left_job() {
  thread_local std::weak_ptr<Communicator> instance;
  return instance;
}

}  // namespace

void leave_job(std::shared_ptr<Communicator> const& comm) {
  if (version() >= 21900 && version() < 22600) left_job() = comm;
}

void complete_job(Communicator const* comm) {
  auto const other = left_job().lock();
  if (other != nullptr && other.get() != comm && !other->aborted)
    emulated_report("a communicator is used while the thread has a job of another one");
  left_job().reset();
}

Comms& comms() {
  static auto* const instance = new Comms;
  return *instance;
}

std::shared_ptr<Communicator> ready(ncclComm_t handle) {
  auto comm = comms().find(handle);
  demand(comm->state != ncclInProgress, ncclInvalidArgument,
         "attempt to use the communicator before the previous operation returned ncclSuccess");
  complete_job(comm.get());
  demand(!comm->revoked && !comm->finalized, ncclInvalidUsage, "the communicator is finalized or revoked");
  demand(comm->state == ncclSuccess, static_cast<ncclResult_t>(comm->state.load()), "the communicator has failed");
  return comm;
}

}  // namespace emulated::nccl
