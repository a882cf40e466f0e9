#pragma once
#include <memory>
#include <string_view>

namespace crossrank {

/// A vendor's own group of the ranks of a job, for calls to that vendor.
struct ProcessGroup {
  std::string_view vendor{};       ///< "mpi": `handle` points to an `MPI_Comm`
  std::shared_ptr<void> handle{};  ///< never null where there is a group; not to be freed
};

}  // namespace crossrank
