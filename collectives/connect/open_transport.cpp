#include "collectives/connect/open_transport.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/add_node_memory.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "collectives/shm/node_transport.hpp"
#include "collectives/connect/plugin_loader.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/segment_names.hpp"

namespace crossrank {
namespace {

constexpr std::chrono::milliseconds default_connect_timeout{120'000};

[[noreturn]] void refuse(JobDescription const& job, std::string why, std::string hint) {
  throw UnavailableError({.operation = "connect",
                          .message = std::move(why),
                          .hint = std::move(hint),
                          .rank = job.rank,
                          .world_size = job.world_size,
                          .group_usable = false});
}

std::shared_ptr<spi::Transport> open_shm(ConnectOptions const& options, JobDescription const& job,
                                         spi::TimeoutPolicy const& timeout_policy) {
  if (job.world_size > node::max_ranks) {
    refuse(job, "the job has more ranks than a node can have: " + std::to_string(job.world_size),
           "start at most " + std::to_string(node::max_ranks) + " ranks on each node");
  }
  node::NodeOptions on_node{.key = {.job_id = job.job_id, .master = job.master, .step = job.step},
                            .rank = job.rank,
                            .ranks = job.world_size,
                            .global_rank = job.rank,
                            .timeout = options.connect_timeout.value_or(default_connect_timeout),
                            .linger = options.linger,
                            .cap_bytes = options.arena_cap,
                            .threads = options.rank_kind == RankKind::thread,
                            .launcher = job.launcher,
                            .host_id = job.host_id};
  // A single rank has no peers, and without a job id it must not join the rendezvous of another job.
  if (on_node.ranks == 1) on_node.key.step += "/" + std::to_string(node::random_nonce()[0]);
  return node_transport(on_node, "world", all_ranks(job.world_size), timeout_policy);
}

/// Opens the group of all ranks by the plugin, for `backend` on top of it.
std::shared_ptr<spi::Transport> open_plugin(std::string const& plugin, std::string const& backend,
                                            ConnectOptions const& options, JobDescription const& job,
                                            spi::TimeoutPolicy const& timeout_policy) {
  return load_plugin(plugin).open({.job = job.job_id,
                                   .backend = backend,
                                   .master = job.master,
                                   .rank = job.rank,
                                   .world_size = job.unknown_size ? 0 : job.world_size,
                                   .timeout_policy = timeout_policy,
                                   .connect_timeout = options.connect_timeout.value_or(default_connect_timeout)});
}

/// Opens shared memory on each node and MPI between the nodes.
std::shared_ptr<spi::Transport> open_composite(ConnectOptions const& options, JobDescription const& job,
                                               spi::TimeoutPolicy const& timeout_policy) {
  return spi::add_node_memory(open_plugin("mpi", "composite", options, job, timeout_policy),
                              {.timeout_policy = timeout_policy,
                               .connect_timeout = options.connect_timeout.value_or(default_connect_timeout),
                               .arena_cap = options.arena_cap,
                               .job = job.job_id});
}

/// Opens shared memory where MPI cannot be used. If the ranks declare different hosts, the error says why MPI, which
/// would serve them, is missing.
std::shared_ptr<spi::Transport> open_shm_without_mpi(ConnectOptions const& options, JobDescription const& job,
                                                     spi::TimeoutPolicy const& timeout_policy,
                                                     UnavailableError const& no_mpi) {
  try {
    return open_shm(options, job, timeout_policy);
  } catch (MismatchError const& refused) {
    auto info = refused.info();
    info.details.push_back("MPI serves several hosts, but is not available: " + no_mpi.info().message);
    if (!no_mpi.info().hint.empty()) info.hint = no_mpi.info().hint;
    throw MismatchError(std::move(info));
  }
}

/// Opens a job on one machine whose ranks set CROSSRANK_HOST_ID. MPI tells every rank whether all values are equal.
/// If they are, or if there is no MPI, shared memory alone serves the job, or rejects different values.
std::shared_ptr<spi::Transport> open_declared_hosts(ConnectOptions const& options, JobDescription const& job,
                                                    spi::TimeoutPolicy const& timeout_policy) {
  std::shared_ptr<spi::Transport> across;
  try {
    across = open_plugin("mpi", "composite", options, job, timeout_policy);
  } catch (UnavailableError const& no_mpi) {
    return open_shm_without_mpi(options, job, timeout_policy, no_mpi);
  }
  if (std::ssize(across->node_ranks()) == across->world_size()) {
    across->close(timeout_policy);
    return open_shm(options, job, timeout_policy);
  }
  return spi::add_node_memory(std::move(across),
                              {.timeout_policy = timeout_policy,
                               .connect_timeout = options.connect_timeout.value_or(default_connect_timeout),
                               .arena_cap = options.arena_cap,
                               .job = job.job_id});
}

/// Opens a job on several nodes when the caller requested no backend by name.
std::shared_ptr<spi::Transport> open_across_nodes(ConnectOptions const& options, JobDescription const& job,
                                                  spi::TimeoutPolicy const& timeout_policy) {
  try {
    return open_composite(options, job, timeout_policy);
  } catch (UnavailableError const& e) {
    auto const where = job.unknown_size ? "PMIx started this process as rank " + std::to_string(job.rank) +
                                              " but did not set the number of ranks"
                                        : std::to_string(job.local_world_size) + " of " +
                                              std::to_string(job.world_size) + " ranks are on this node";
    throw UnavailableError(
        {.operation = "connect",
         .message = "no backend can serve this job: " + where,
         .expected = "shared memory and MPI together (\"composite\")",
         .resource = e.info().resource,
         .system = e.info().system,
         .hint = e.info().hint,
         .rank = job.rank,
         .world_size = job.world_size,
         .group_usable = false,
         .details = {"\"shm\" serves only the ranks of one node", "\"composite\": " + std::string(e.what()),
                     "\"fake\" serves only a single rank"}});
  }
}

}  // namespace

std::chrono::milliseconds connect_timeout_of(ConnectOptions const& options, Environment const& environment) {
  if (environment.connect_timeout) return *environment.connect_timeout;
  if (options.connect_timeout) return *options.connect_timeout;
  return std::min(default_connect_timeout, environment.timeout.value_or(default_connect_timeout));
}

JobDescription describe_job(ConnectOptions const& options, Environment const& environment) {
  if (!options.rank || !options.world_size) environment.require_identity();
  JobDescription job;
  job.rank = options.rank.value_or(environment.rank);
  job.world_size = options.world_size.value_or(environment.world_size);
  if (job.world_size < 1) {
    throw UsageError({.operation = "connect",
                      .message = "a job has at least one rank",
                      .expected = "a `world_size` of at least 1",
                      .got = std::to_string(job.world_size),
                      .group_usable = false});
  }
  if (job.rank < 0 || job.rank >= job.world_size) {
    throw UsageError({.operation = "connect",
                      .message = "the rank does not exist",
                      .expected = "0 to " + std::to_string(job.world_size - 1),
                      .got = std::to_string(job.rank),
                      .group_usable = false});
  }
  // With ranks from the caller nothing is known about nodes, so all ranks are assumed to be on this one.
  bool const given = options.world_size.has_value();
  job.local_world_size = given ? job.world_size : environment.local_world_size.value_or(job.world_size);
  job.local_rank = given ? job.rank : environment.local_rank.value_or(job.rank);
  bool const by_nodes = !given && !environment.local_world_size && environment.nodes.value_or(1) > 1;
  job.several_nodes = job.local_world_size < job.world_size || (by_nodes && job.world_size > 1);
  if (by_nodes) job.local_world_size = 1;  // at least this rank
  job.unknown_size = !given && environment.launcher == Launcher::none && environment.pmix_rank.has_value();
  if (job.unknown_size) job.rank = options.rank.value_or(*environment.pmix_rank);
  job.job_id = options.job_id.empty() ? environment.job_id : options.job_id;
  if (!environment.master_addr.empty()) job.master = environment.master_addr;
  if (environment.master_port) job.master += ":" + std::to_string(*environment.master_port);
  bool const threads = options.rank_kind == RankKind::thread;
  // Threads find each other within this process.
  if (threads && job.job_id.empty()) job.job_id = "threads-of-pid-" + std::to_string(::getpid());
  if (environment.started_by_run && !given && !options.rank && !threads) job.launcher = environment.job_id;
  if (!threads) job.host_id = environment.host_id;
  job.declares_hosts = environment.launcher == Launcher::open_mpi && !given && !threads && !job.host_id.empty();
  job.step = environment.step_id + "/" + std::to_string(environment.restart.value_or(0));
  bool const by_mpi = options.backend == "mpi" || options.backend == "composite" || job.several_nodes;
  if (job.world_size > 1 && job.job_id.empty() && !environment.master_port && !by_mpi) {
    throw UsageError({.operation = "connect",
                      .message = std::to_string(job.world_size) +
                                 " ranks were announced, but nothing distinguishes this job from others on this host",
                      .expected = "CROSSRANK_JOB_ID, or MASTER_ADDR and MASTER_PORT",
                      .hint = "start with `crossrank run -n " + std::to_string(job.world_size) +
                              " -- program`, or set CROSSRANK_JOB_ID",
                      .rank = job.rank,
                      .world_size = job.world_size,
                      .group_usable = false});
  }
  return job;
}

std::shared_ptr<spi::Transport> open_transport(ConnectOptions const& options, JobDescription const& job,
                                               spi::TimeoutPolicy const& timeout_policy) {
  auto const& backend = options.backend;
  if (!backend.empty() && backend != "shm" && backend != "fake" && backend != "mpi" && backend != "composite") {
    if (has_plugin(backend)) return open_plugin(backend, backend, options, job, timeout_policy);
    refuse(job, "unknown backend \"" + backend + "\"",
           "use \"shm\", \"mpi\", \"composite\" or \"fake\", omit the backend to let crossrank choose, or install its "
           "plugin, libcrossrank_NAME.so, beside the library");
  }
  if (backend == "mpi") return open_plugin("mpi", backend, options, job, timeout_policy);
  if (backend == "composite") return open_composite(options, job, timeout_policy);
  bool const alone = job.world_size == 1 && options.rank_kind == RankKind::process;
  if (backend.empty() && (job.several_nodes || (alone && job.unknown_size)))
    return open_across_nodes(options, job, timeout_policy);
  if (backend == "fake" || (backend.empty() && alone)) {
    if (job.world_size == 1) return std::make_shared<fake::FakeTransport>("world");
    refuse(job, "backend \"fake\" serves one rank, but " + std::to_string(job.world_size) + " were announced",
           "omit the backend to let crossrank choose");
  }
  if (backend.empty() && job.declares_hosts && job.world_size > 1)
    return open_declared_hosts(options, job, timeout_policy);
  if (job.several_nodes) {
    refuse(job,
           "backend \"shm\" serves the ranks of one node, but " + std::to_string(job.local_world_size) + " of " +
               std::to_string(job.world_size) + " ranks are on this one",
           "omit the backend to let crossrank choose, or start all ranks on one node");
  }
  return open_shm(options, job, timeout_policy);
}

}  // namespace crossrank
