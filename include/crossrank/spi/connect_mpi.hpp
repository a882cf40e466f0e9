#pragma once
#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>

namespace crossrank::spi {

/// Does what `mpi::connect` does, for bindings of languages that do not have MPI's C types.
///
/// `communicator` is the Fortran handle of a communicator: `MPI_Comm_c2f`, or mpi4py's `py2f`. Errors as for
/// `mpi::connect`; also `UnavailableError` when the MPI plugin is missing.
[[nodiscard]] CROSSRANK_EXPORT Collective connect_mpi(int communicator, ConnectOptions const& options);

}  // namespace crossrank::spi
