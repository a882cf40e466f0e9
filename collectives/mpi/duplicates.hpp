#pragma once
#include <chrono>
#include <memory>

#include <crossrank/mpi.hpp>

namespace crossrank::mpi {

/// The library's duplicates of one communicator.
struct Duplicates {
  MPI_Comm own = MPI_COMM_NULL;      ///< for packets; returns errors
  MPI_Comm callers = MPI_COMM_NULL;  ///< for the program
};

/// Frees both once no rank uses them any more. Collective over the communicator; not for several threads at a time.
///
/// This rank uses them until `user` has expired. A later call for any communicator frees them if a rank still uses them
/// or other ranks do not call within `limit`.
void free_together(Duplicates const& duplicates, std::weak_ptr<void const> user, std::chrono::milliseconds limit);

}  // namespace crossrank::mpi
