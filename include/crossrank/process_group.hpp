#pragma once
#include <memory>
#include <string_view>

namespace crossrank {

/// A vendor library's own group of the ranks of a job, for calls to that library.
struct ProcessGroup {
  /// "mpi", of `JobCollective::process_group`: `handle` points to an `MPI_Comm`. "nccl", of `nccl::process_group`:
  /// `handle` is the `ncclComm_t`.
  std::string_view vendor{};
  std::shared_ptr<void> handle{};  ///< never null; the caller must not free its target
};

}  // namespace crossrank
