#pragma once
#include <optional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/process_group.hpp>

// NCCL's opaque type, as nccl.h declares it. No header of NCCL is needed, and including one does no harm.
struct ncclComm;

/// NCCL, which carries collectives on GPU tensors. Its library is opened at the first use: see docs/DEVICES.md.
namespace crossrank::nccl {

/// The NCCL of this process, for reports.
struct LibraryInfo {
  std::string path{};  ///< file that was opened
  int version = 0;     ///< 10,000 * major + 100 * minor + patch
  /// Functions that the library lacks, and what they are for: "gather in one call (ncclGather)". crossrank uses other
  /// calls instead.
  std::vector<std::string> missing{};
};

/// Returns the NCCL that was loaded, and loads it first if necessary. `UnavailableError` without NCCL or with one
/// before 2.18, which says what was tried and what to install. Local.
[[nodiscard]] CROSSRANK_EXPORT LibraryInfo library_info();

/// Names the NCCL to open where `CROSSRANK_NCCL_LIBRARY` names none and the process has not loaded one, before the
/// system's. For programs that load another library later that brings its own NCCL, such as PyTorch: a process has only
/// one library of the name `libnccl.so.2`. Local. Without effect once NCCL is open.
CROSSRANK_EXPORT void prefer_library(std::string path);

/// Returns the communicator of a group, of vendor "nccl", for the caller's own calls of NCCL. Local.
///
/// The handle is the `ncclComm_t`. Empty while `device_backend()` is not "nccl". The communicator does not block: wait
/// for `ncclCommGetAsyncError` after a call that returns `ncclInProgress`. All ranks make their own calls in the same
/// order, also relative to the group's collectives, and this rank makes none while another thread is in a call of the
/// group. The group owns the communicator as long as the result lives, and aborts it when the group fails: use it only
/// before. `UsageError` once the group is closed.
[[nodiscard]] CROSSRANK_EXPORT std::optional<ProcessGroup> process_group(Collective const& group);

/// Returns the `ncclComm_t` of `process_group()`. Local. `UsageError` for the group of another vendor.
[[nodiscard]] CROSSRANK_EXPORT ncclComm* communicator_of(ProcessGroup const& group);

}  // namespace crossrank::nccl
