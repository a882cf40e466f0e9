#pragma once
#include <memory>
#include <string_view>

namespace crossrank {

/// A vendor library's own group of the ranks of a job, for calls to that library.
struct ProcessGroup {
  std::string_view vendor{};       ///< "mpi": `handle` points to an `MPI_Comm`
  std::shared_ptr<void> handle{};  ///< never null; the caller must not free its target
};

}  // namespace crossrank
