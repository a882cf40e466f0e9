#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/types.h>

#include <crossrank/mpi.hpp>
#include <crossrank/spi/network.hpp>

#include "collectives/mpi/duplicates.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank::mpi {

/// MPI in this process: whether the library initialized it, its thread level, and how it ends.
///
/// The library finalizes MPI only if it initialized it: when the process exits, and not at all once a rank is lost,
/// because MPI_Finalize waits for all ranks. If the program finalizes MPI, the library's networks stop just before.
class Process {
 public:
  [[nodiscard]] static Process& instance();

  /// Initializes MPI unless somebody has. `UsageError` once MPI is finalized; `TimeoutError` when not all ranks of the
  /// job come to it within `limit`.
  void initialize(std::chrono::milliseconds limit);
  /// Throws `UsageError` unless MPI is initialized.
  void require_initialized(char const* operation);
  /// The network over a duplicate of `communicator`, with another for the program. Opened once for each communicator,
  /// and kept until the program frees it. The first call is collective over it; `TimeoutError` when not all come,
  /// `UsageError` for one that is no group of ranks.
  [[nodiscard]] std::shared_ptr<spi::Network> open(MPI_Comm communicator, std::chrono::milliseconds limit);
  void mark_rank_lost() noexcept { lost_.store(true); }

 private:
  friend NoDestructor<Process>;
  /// MPI_Init under way in a thread of its own.
  struct Start {
    std::atomic<bool> done{false};
    int code = MPI_SUCCESS;
    int provided = MPI_THREAD_SINGLE;
  };
  /// The network of a communicator. The communicator has its address as an attribute.
  struct Opened {
    Duplicates duplicates{};
    std::weak_ptr<void const> user{};  ///< the packet transport, which uses the duplicates
    std::shared_ptr<spi::Network> network{};
  };
  class Opening;
  Process() = default;
  void start(std::chrono::milliseconds limit);
  static void require_group(MPI_Comm communicator);
  [[nodiscard]] MPI_Comm duplicate(MPI_Comm communicator, std::chrono::milliseconds limit,
                                   std::unique_lock<std::mutex>& lock);
  void install_finalize_hook();
  [[nodiscard]] std::shared_ptr<spi::Network> find(MPI_Comm communicator) const;
  void release(Opened const* opened);
  void end_networks() noexcept;
  static int on_free(MPI_Comm, int, void* opened, void*) noexcept;
  static int on_finalize(MPI_Comm, int, void*, void*) noexcept;
  static void on_exit() noexcept;

  std::mutex mutex_{};
  std::vector<MPI_Comm> opening_{};  ///< communicators that threads are duplicating without the lock
  std::condition_variable opening_ended_{};
  std::shared_ptr<Start> start_{};
  bool initialised_here_ = false;
  pid_t pid_ = 0;                 ///< that has initialized MPI
  int key_ = MPI_KEYVAL_INVALID;  ///< of the attribute of communicators that have a network
  std::atomic<bool> lost_{false};
  std::list<Opened> opened_{};
  std::vector<std::weak_ptr<spi::Network>> orphans_{};  ///< used by groups, but the program has freed the communicator
};

}  // namespace crossrank::mpi
