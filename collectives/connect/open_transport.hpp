#pragma once
#include <chrono>
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
  std::string launcher{};       ///< job id of the `crossrank run` that started exactly these ranks; else empty
  std::string host_id{};        ///< CROSSRANK_HOST_ID
  bool declares_hosts = false;  ///< ranks of one machine may say that they are on several nodes, which MPI can serve
};

/// Time for all ranks to come: CROSSRANK_CONNECT_TIMEOUT, else the option, else 120 s or CROSSRANK_TIMEOUT where that
/// is shorter.
[[nodiscard]] std::chrono::milliseconds connect_timeout_of(ConnectOptions const& options,
                                                           Environment const& environment);

/// The rank, size and key of the job. `UsageError` for what cannot be, and where several ranks are announced without
/// anything that tells their job from others.
[[nodiscard]] JobDescription describe_job(ConnectOptions const& options, Environment const& environment);

/// The transport for a job: the backend asked for, or the one that serves it. `UnavailableError` says what was tried.
[[nodiscard]] std::shared_ptr<spi::Transport> open_transport(ConnectOptions const& options, JobDescription const& job,
                                                             spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank
