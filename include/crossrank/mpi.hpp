#pragma once
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/process_group.hpp>

namespace crossrank::mpi {

/// Returns the group of all ranks of `communicator`, in a program that owns MPI.
///
/// Collective over the communicator. The groups of a communicator share duplicates of it; the communicator stays the
/// caller's. The duplicates and their thread end once the program has freed the communicator and dropped all handles of
/// its groups. MPI must have been initialized, and crossrank never finalizes it; close groups before `MPI_Finalize`. By
/// default ranks of the same node use its shared memory ("composite"); with `backend = "mpi"` they use only MPI.
/// `rank`, `world_size` and `job_id` of the options are ignored.
///
/// Below `MPI_THREAD_MULTIPLE`, a rank answers its peers only during its own calls. Below `MPI_THREAD_SERIALIZED`, only
/// the thread that initialized MPI may call.
///
/// `UsageError` before `MPI_Init` and after `MPI_Finalize`, for `MPI_COMM_NULL` and for an intercommunicator.
/// `BackendError` when an MPI call fails. `TimeoutError` when not all ranks call within the connect timeout; MPI cannot
/// be finalized then.
[[nodiscard]] CROSSRANK_EXPORT Collective connect(MPI_Comm communicator, ConnectOptions const& options = {});

/// Returns the communicator of a job's `process_group()`, for calls to MPI. Local. The job owns it. `UsageError` for
/// the group of another vendor.
[[nodiscard]] CROSSRANK_EXPORT MPI_Comm communicator_of(ProcessGroup const& group);

}  // namespace crossrank::mpi
