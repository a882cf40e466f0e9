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
/// Collective over the communicator, which is duplicated and stays the caller's. MPI must have been initialised and is
/// never finalised here; close groups before `MPI_Finalize`. Ranks that share a node share its memory ("composite");
/// `backend = "mpi"` keeps to MPI alone. `rank`, `world_size` and `job_id` of the options are not used.
///
/// With less than `MPI_THREAD_MULTIPLE`, ranks answer for themselves only while they call. With less than
/// `MPI_THREAD_SERIALIZED`, only the thread that initialised MPI may call.
///
/// `UsageError` before `MPI_Init` and after `MPI_Finalize`, for `MPI_COMM_NULL` and for an intercommunicator.
/// `BackendError` for what MPI refuses. `TimeoutError` when not all ranks come within the connect timeout; MPI cannot
/// be finalised then.
[[nodiscard]] CROSSRANK_EXPORT Collective connect(MPI_Comm communicator, ConnectOptions const& options = {});

/// Returns the communicator of a job's `process_group()`, for calls to MPI; it stays the job's. `UsageError` for the
/// group of another vendor.
[[nodiscard]] CROSSRANK_EXPORT MPI_Comm communicator_of(ProcessGroup const& group);

}  // namespace crossrank::mpi
