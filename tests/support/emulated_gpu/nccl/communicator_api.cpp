// Making, asking and ending communicators.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/support/emulated_gpu/nccl/group.hpp"
#include "tests/support/emulated_gpu/nccl/version.hpp"

extern "C" {
CUresult cuCtxGetDevice(CUdevice*);
CUresult cuCtxGetCurrent(CUcontext*);
}

namespace emulated::nccl {
namespace {

constexpr std::uint64_t id_magic = 0x656D756C61746564;

/// What the 128 bytes of a unique id hold.
struct Id {
  std::uint64_t magic;
  FileName file;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

/// Files of ids that this process has drawn, until their communicator is complete.
struct Drawn {
  std::mutex mutex;
  std::map<std::uint64_t, std::shared_ptr<MemoryFile>> files;
};
Drawn& drawn() {
  static auto* const instance = new Drawn;
  return *instance;
}

std::string& last_error() {
  static auto* const text = new std::string;
  return *text;
}
std::mutex last_error_mutex;

/// Reads the configuration as far as its size says, checked as the real library does.
bool blocking_of(ncclConfig_t const* config) {
  if (config == nullptr) return true;
  demand(config->magic == 0xCAFEBEEFU, ncclInvalidArgument, "the configuration is not initialized");
  demand(config->size >= offsetof(ncclConfig_t, cgaClusterSize), ncclInvalidArgument, "the configuration is too short");
  demand(config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking == 0 || config->blocking == 1,
         ncclInvalidArgument, "the attribute blocking is neither 0 nor 1");
  int traffic_class = NCCL_CONFIG_UNDEF_INT;
  constexpr std::size_t traffic_class_at = 44;
  if (config->size >= traffic_class_at + sizeof traffic_class)
    std::memcpy(&traffic_class, reinterpret_cast<std::byte const*>(config) + traffic_class_at, sizeof traffic_class);
  demand(traffic_class == NCCL_CONFIG_UNDEF_INT, ncclInvalidArgument, "the attribute trafficClass is not initialized");
  return config->blocking != 0;
}

std::shared_ptr<Communicator> fresh(int size, int rank, bool blocking) {
  demand(size >= 1 && size <= max_ranks && rank >= 0 && rank < size, ncclInvalidArgument, "the rank does not exist");
  auto comm = std::make_shared<Communicator>();
  comm->size = size;
  comm->rank = rank;
  comm->blocking = blocking;
  demand(cuCtxGetDevice(&comm->device) == CUDA_SUCCESS && cuCtxGetCurrent(&comm->context) == CUDA_SUCCESS,
         ncclUnhandledCudaError, "no CUDA context is current");
  return comm;
}

void join_by_id(Communicator& comm, Id const& id) {
  join(comm, MemoryFile::open(id.file));
  std::lock_guard const lock(drawn().mutex);
  if (id.file.process == ::getpid()) drawn().files.erase(id.file.inode);
}

ncclResult_t make(ncclComm_t* handle, int size, ncclUniqueId const& unique, int rank, ncclConfig_t const* config) {
  demand(handle != nullptr, ncclInvalidArgument, "there is no place for the communicator");
  *handle = nullptr;
  Id id;
  std::memcpy(&id, unique.internal, sizeof id);
  demand(id.magic == id_magic, ncclInvalidArgument, "the id was not drawn by ncclGetUniqueId");
  auto comm = fresh(size, rank, blocking_of(config));
  complete_job(nullptr);
  *handle = comms().add(comm);
  auto const result = add_job(comm, [comm, id] { join_by_id(*comm, id); });
  if (result != ncclSuccess && result != ncclInProgress) {
    comms().remove(*handle);
    *handle = nullptr;
  }
  return result;
}

/// What a rank says when communicators are split or shrunk, and what the first of a part adds.
struct Choice {
  int color;
  int key;
};

/// Makes the communicator of `members` of the parent, which are in the order of the child's ranks. All of `speakers`
/// call.
void make_child(Communicator& parent, Communicator& child, std::vector<int> const& members,
                std::vector<int> const& speakers) {
  std::shared_ptr<MemoryFile> file;
  Blob mine{};
  if (!members.empty() && members.front() == parent.rank) {
    file = Shared::create();
    demand(file != nullptr, ncclSystemError, "no memory for a communicator");
    auto const name = file->name();
    std::memcpy(mine.data(), &name, sizeof name);
  }
  auto const blobs = parent.exchange(mine, speakers);
  if (members.empty()) return;
  FileName name;
  std::memcpy(&name, blobs[static_cast<std::size_t>(members.front())].data(), sizeof name);
  child.size = static_cast<int>(members.size());
  child.rank = static_cast<int>(std::find(members.begin(), members.end(), parent.rank) - members.begin());
  join(child, MemoryFile::open(name));
}

std::vector<int> part_of(Communicator& parent, Choice mine) {
  Blob blob{};
  std::memcpy(blob.data(), &mine, sizeof mine);
  auto const blobs = parent.exchange(blob, parent.everyone());
  std::vector<std::pair<int, int>> sorted;  // key and rank
  for (int r = 0; r < parent.size; ++r) {
    Choice other;
    std::memcpy(&other, blobs[static_cast<std::size_t>(r)].data(), sizeof other);
    if (other.color == mine.color) sorted.emplace_back(other.key, r);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> members;
  if (mine.color != NCCL_SPLIT_NOCOLOR) {
    for (auto const& [key, r] : sorted) members.push_back(r);
  }
  return members;
}

/// Adds the job that makes a child; the handle is there at once.
ncclResult_t add_child(std::shared_ptr<Communicator> const& parent, ncclComm_t* handle, ncclConfig_t const* config,
                       bool wanted, std::function<void(Communicator&)> body) {
  demand(handle != nullptr, ncclInvalidArgument, "there is no place for the communicator");
  auto child = std::make_shared<Communicator>();
  child->device = parent->device;
  child->context = parent->context;
  child->blocking = config == nullptr ? parent->blocking : blocking_of(config);
  *handle = wanted ? comms().add(child) : nullptr;
  if (!parent->blocking) parent->state = ncclInProgress;
  return add_job(child, [parent, child, body] {
    struct Done {
      Communicator& comm;
      ~Done() { comm.state = ncclSuccess; }
    } const done{*parent};
    body(*child);
  });
}

void wait_for_kernels(Communicator& comm) {
  wait_until([&] { return comm.running == 0; }, [&] { return comm.stopped(); });
}

/// A graph that holds kernels of the communicator keeps it alive: the call blocks, as the real one does.
void wait_for_graphs(Communicator& comm) {
  wait_until([&] { return comm.captured == 0; }, {});
}

}  // namespace

void remember(std::string const& why) {
  std::lock_guard const lock(last_error_mutex);
  last_error() = why;
}

}  // namespace emulated::nccl

using namespace emulated;
using namespace emulated::nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* out_version) {
  return nccl::call("ncclGetVersion", [&] {
    demand(out_version != nullptr, ncclInvalidArgument, "there is no place for the version");
    *out_version = version();
    return ncclSuccess;
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique) {
  return nccl::call("ncclGetUniqueId", [&] {
    demand(unique != nullptr, ncclInvalidArgument, "there is no place for the id");
    auto file = Shared::create();
    demand(file != nullptr, ncclSystemError, "no memory for a communicator");
    Id const id{id_magic, file->name()};
    std::memset(unique->internal, 0, sizeof unique->internal);
    std::memcpy(unique->internal, &id, sizeof id);
    std::lock_guard const lock(drawn().mutex);
    drawn().files[id.file.inode] = std::move(file);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId unique, int rank) {
  return nccl::call("ncclCommInitRank", [&] { return make(handle, size, unique, rank, nullptr); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  return nccl::call("ncclCommInitRankConfig", [&] { return make(handle, size, unique, rank, config); });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* child_handle, ncclConfig_t* config) {
  return nccl::call("ncclCommSplit", [&] {
    auto const parent = comms().find(handle);
    demand(parent->state != ncclInProgress, ncclInvalidArgument, "the communicator is busy");
    demand(color >= 0 || color == NCCL_SPLIT_NOCOLOR, ncclInvalidArgument, "the color is negative");
    return add_child(parent, child_handle, config, color != NCCL_SPLIT_NOCOLOR,
                     [parent, color, key](Communicator& child) {
                       auto const members = part_of(*parent, {color, key});
                       make_child(*parent, child, members, parent->everyone());
                     });
  });
}

ncclResult_t ncclCommShrink(ncclComm_t handle, int* excluded, int count, ncclComm_t* child_handle, ncclConfig_t* config,
                            int flags) {
  return nccl::call("ncclCommShrink", [&] {
    auto const parent = comms().find(handle);
    demand(excluded != nullptr && count > 0, ncclInvalidArgument, "no rank is excluded");
    if ((flags & NCCL_SHRINK_ABORT) != 0) {
      parent->revoked = true;
    } else {
      demand(parent->state != ncclInProgress, ncclInvalidArgument, "the communicator is busy");
    }
    std::set<int> const out(excluded, excluded + count);
    demand(!out.contains(parent->rank), ncclInvalidArgument, "an excluded rank calls ncclCommShrink");
    std::vector<int> members;
    for (int const r : parent->everyone()) {
      if (!out.contains(r)) members.push_back(r);
    }
    return add_child(parent, child_handle, config, true,
                     [parent, members](Communicator& child) { make_child(*parent, child, members, members); });
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return nccl::call("ncclCommFinalize", [&] {
    auto const comm = comms().find(handle);
    complete_job(comm.get());
    demand(!comm->finalized.exchange(true), ncclInvalidUsage, "the communicator was finalized before");
    return add_job(comm, [comm] { wait_for_kernels(*comm); });
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return nccl::call("ncclCommDestroy", [&] {
    if (handle == nullptr) return ncclSuccess;
    auto const comm = comms().remove(handle);
    wait_for_kernels(*comm);
    wait_for_graphs(*comm);
    if (comm->registered != 0) emulated_report("a communicator is destroyed with registered buffers");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return nccl::call("ncclCommAbort", [&] {
    if (handle == nullptr) return ncclSuccess;
    auto const comm = comms().remove(handle);
    comm->aborted = true;
    wait_for_graphs(*comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
  return nccl::call("ncclCommRevoke", [&] {
    demand(flags == 0, ncclInvalidArgument, "unknown flags");
    comms().find(handle)->revoked = true;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return nccl::call("ncclCommGetAsyncError", [&] {
    demand(error != nullptr, ncclInvalidArgument, "there is no place for the error");
    auto const comm = comms().find(handle);
    if (int const fault = emulated_log_call("nccl_async_error"); fault != 0) comm->state = fault;
    *error = static_cast<ncclResult_t>(comm->state.load());
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(ncclComm_t handle, int* count) {
  return nccl::call("ncclCommCount", [&] {
    demand(count != nullptr, ncclInvalidArgument, "there is no place for the count");
    auto const comm = comms().find(handle);
    demand(comm->state != ncclInProgress, ncclInvalidArgument, "the communicator is busy");
    complete_job(comm.get());
    *count = comm->size;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t handle, int* device) {
  return nccl::call("ncclCommCuDevice", [&] {
    demand(device != nullptr, ncclInvalidArgument, "there is no place for the device");
    *device = comms().find(handle)->device;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) {
  return nccl::call("ncclCommUserRank", [&] {
    demand(rank != nullptr, ncclInvalidArgument, "there is no place for the rank");
    *rank = comms().find(handle)->rank;
    return ncclSuccess;
  });
}

char const* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

char const* ncclGetLastError(ncclComm_t) {
  thread_local std::string copy;
  std::lock_guard const lock(last_error_mutex);
  copy = last_error();
  return copy.c_str();
}
}
