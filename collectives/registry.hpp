#pragma once
#include <memory>

#include <crossrank/collective.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/environment.hpp"

namespace crossrank {

/// What `connect` has made of its options and the environment.
struct JobDescription {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  bool several_nodes = false;  ///< the launcher says that the ranks are on several nodes
  bool unknown_size = false;   ///< PMIx started this process as `rank`, but only MPI knows of how many
  std::string job_id{};
  std::string master{};
  std::string step{};
};

/// The rank, size and key of the job. `UsageError` for what cannot be, and where several ranks are announced without
/// anything that tells their job from others.
[[nodiscard]] JobDescription describe_job(ConnectOptions const& options, Environment const& environment);

/// The transport for a job: the backend asked for, or the one that serves it. `UnavailableError` says what was tried.
[[nodiscard]] std::shared_ptr<spi::Transport> open_transport(ConnectOptions const& options, JobDescription const& job,
                                                             spi::Patience const& patience);

}  // namespace crossrank
