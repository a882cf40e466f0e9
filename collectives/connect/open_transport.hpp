#pragma once
#include <chrono>
#include <memory>

#include <crossrank/collective.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/environment.hpp"

namespace crossrank {

/// The job that `connect` joins, from its options and the environment.
struct JobDescription {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  bool several_nodes = false;  ///< the launcher reports several nodes
  bool unknown_size = false;   ///< PMIx started this process as `rank`, but only MPI knows the number of ranks
  std::string job_id{};
  std::string master{};
  std::string step{};
  std::string launcher{};       ///< job id of the `crossrank run` that started exactly these ranks; empty otherwise
  std::string host_id{};        ///< CROSSRANK_HOST_ID
  bool declares_hosts = false;  ///< ranks of one machine may declare different hosts, which MPI can serve
};

/// Returns how long to wait for all ranks: CROSSRANK_CONNECT_TIMEOUT, else the option, else the smaller of 120 s and
/// CROSSRANK_TIMEOUT.
[[nodiscard]] std::chrono::milliseconds connect_timeout_of(ConnectOptions const& options,
                                                           Environment const& environment);

/// Determines the rank, size and key of the job. Throws `UsageError` for impossible values, and when several ranks are
/// announced without anything that distinguishes their job from others.
[[nodiscard]] JobDescription describe_job(ConnectOptions const& options, Environment const& environment);

/// Opens the transport of a job: the requested backend, or the one that suits the job. Throws `UnavailableError` that
/// lists the backends that were tried.
[[nodiscard]] std::shared_ptr<spi::Transport> open_transport(ConnectOptions const& options, JobDescription const& job,
                                                             spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank
