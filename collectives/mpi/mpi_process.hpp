#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <crossrank/mpi.hpp>
#include <crossrank/spi/wire.hpp>

#include "collectives/mpi/mpi_wire.hpp"

namespace crossrank::mpi {

/// MPI in this process: who initialised it, what its threads may do, and how it ends.
///
/// Only who initialises finalises: when the process exits, and not at all once a rank is lost, as finalising waits for
/// all. When a program finalises MPI itself, what was opened on it ends just before.
class Process {
 public:
  [[nodiscard]] static Process& instance();

  /// Initialises MPI unless somebody has. `UsageError` once MPI is finalised.
  void need_mpi();
  /// The same without initialising: `UsageError` where MPI is not.
  void require_mpi(char const* operation);
  /// The network over a duplicate of `communicator`. Collective over it.
  [[nodiscard]] std::shared_ptr<message::Network> open(MPI_Comm communicator);
  /// The network over all ranks of the job, opened once.
  [[nodiscard]] std::shared_ptr<message::Network> world();
  void lose() noexcept { lost_.store(true); }

 private:
  Process() = default;
  void hook();
  void end_networks() noexcept;
  static int on_finalize(MPI_Comm, int, void*, void*) noexcept;
  static void on_exit() noexcept;

  std::mutex mutex_{};
  bool initialised_here_ = false;
  bool hooked_ = false;
  std::atomic<bool> lost_{false};
  std::vector<std::shared_ptr<message::Network>> networks_{};
  std::shared_ptr<message::Network> world_{};
};

}  // namespace crossrank::mpi
