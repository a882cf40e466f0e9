// A communicator as one rank has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"
#include "tests/support/emulated_gpu/nccl/nccl_abi.hpp"
#include "tests/support/emulated_gpu/nccl/shared.hpp"

namespace emulated::nccl {

/// Thrown by the body of a call: the result, and the text of ncclGetLastError.
struct Refused {
  ncclResult_t result;
  std::string why;
};
inline void demand(bool condition, ncclResult_t otherwise, char const* why) {
  if (!condition) throw Refused{otherwise, why};
}

struct Communicator {
  int rank = 0;
  int size = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  bool blocking = true;
  std::shared_ptr<Shared> shared;
  std::uint64_t round = 0;  // exchanges so far; only one thread exchanges at a time
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  std::atomic<bool> finalized{false};
  std::atomic<int> state{ncclSuccess};
  std::atomic<int> running{0};   // kernels that have been enqueued and not ended
  std::atomic<int> captured{0};  // kernels that a graph holds
  std::atomic<int> registered{0};

  /// True when waits on peers end.
  bool stopped() const { return aborted || revoked; }
  /// Exchanges a blob with `members`, or with all ranks.
  std::vector<Blob> exchange(Blob const& mine, std::vector<int> const& members);
  std::vector<int> everyone() const;
};

/// What a rank tells the others when it joins.
struct Introduction {
  char uuid[16];
  std::uint64_t host;
  int size;
  int version;
};

/// Joins the communicator of `file` as `rank`. Collective. Refuses ranks that disagree, and two ranks on one GPU.
void join(Communicator& comm, std::shared_ptr<MemoryFile> file);

using Comms = Registry<ncclComm_t, Communicator>;
Comms& comms();
/// The communicator behind a handle, ready for a call.
std::shared_ptr<Communicator> ready(ncclComm_t handle);

/// Leaves the job of a call that is done later with the calling thread, as versions 2.19 to 2.25 do.
void leave_job(std::shared_ptr<Communicator> const& comm);
/// Completes the job of this thread on the communicator, and reports one on another communicator: the real library
/// crashes there.
void complete_job(Communicator const* comm);

/// Remembers the text of the newest error, for ncclGetLastError.
void remember(std::string const& why);

/// Logs a call, runs it, and turns what it throws into a result.
template <class Body>
ncclResult_t call(char const* name, Body&& body) noexcept {
  if (int const fault = emulated_log_call(name); fault != 0) return static_cast<ncclResult_t>(fault);
  try {
    return body();
  } catch (Refused const& refused) {
    remember(refused.why);
    return refused.result;
  } catch (Failure const&) {
    return ncclInvalidArgument;  // an unknown handle
  } catch (...) {
    return ncclInternalError;
  }
}

}  // namespace emulated::nccl
