#include "collectives/registry.hpp"

#include <numeric>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "collectives/shm/shm_transport.hpp"
#include "lib/node/group.hpp"

namespace crossrank {
namespace {

std::shared_ptr<spi::Transport> open_shm(ConnectOptions const& options, JobDescription const& job,
                                         spi::Patience const& patience) {
  node::NodeOptions on_node{.key = {.job_id = job.job_id, .master = job.master, .step = job.step},
                            .rank = job.rank,
                            .ranks = job.world_size,
                            .global_rank = job.rank,
                            .timeout = options.connect_timeout,
                            .cap_bytes = options.arena_cap,
                            .threads = options.ranks_are == RanksAre::threads};
  // A rank that is alone has nobody to meet, and may not meet one of another job that has no id either.
  if (on_node.ranks == 1) on_node.key.step += "/" + std::to_string(node::random_nonce()[0]);
  auto group = node::Group::of_node(node::NodeDomain::join(on_node), "world");
  std::vector<int> global(static_cast<std::size_t>(job.world_size));
  std::iota(global.begin(), global.end(), 0);
  return std::make_shared<shm::ShmTransport>(std::move(group), std::move(global), patience);
}

[[noreturn]] void refuse(JobDescription const& job, std::string why, std::string remedy) {
  throw UnavailableError({.operation = "connect",
                          .message = std::move(why),
                          .remedy = std::move(remedy),
                          .rank = job.rank,
                          .world_size = job.world_size,
                          .group_usable = false});
}

}  // namespace

JobDescription describe_job(ConnectOptions const& options, Environment const& environment) {
  JobDescription job;
  job.rank = options.rank.value_or(environment.rank);
  job.world_size = options.world_size.value_or(environment.world_size);
  if (job.world_size < 1 || job.rank < 0 || job.rank >= job.world_size) {
    throw UsageError({.operation = "connect",
                      .message = "there is no such rank",
                      .expected = "0 to " + std::to_string(job.world_size - 1),
                      .got = std::to_string(job.rank)});
  }
  // Ranks given by the caller say nothing of nodes: then all are on this one.
  bool const given = options.world_size.has_value();
  job.local_world_size = given ? job.world_size : environment.local_world_size.value_or(job.world_size);
  job.local_rank = given ? job.rank : environment.local_rank.value_or(job.rank);
  job.job_id = options.job_id.empty() ? environment.job_id : options.job_id;
  if (!environment.master_addr.empty()) job.master = environment.master_addr;
  if (environment.master_port) job.master += ":" + std::to_string(*environment.master_port);
  job.step = environment.step_id + "/" + std::to_string(environment.restart);
  if (job.world_size > 1 && job.job_id.empty() && !environment.master_port) {
    throw UsageError({.operation = "connect",
                      .message = std::to_string(job.world_size) +
                                 " ranks were announced, but nothing tells this job from others on this host",
                      .expected = "CROSSRANK_JOB_ID, or MASTER_ADDR and MASTER_PORT",
                      .remedy = "start with `crossrank run -n " + std::to_string(job.world_size) +
                                " -- program`, or set CROSSRANK_JOB_ID",
                      .rank = job.rank,
                      .world_size = job.world_size});
  }
  return job;
}

std::shared_ptr<spi::Transport> open_transport(ConnectOptions const& options, JobDescription const& job,
                                               spi::Patience const& patience) {
  auto const& backend = options.backend;
  if (!backend.empty() && backend != "shm" && backend != "fake") {
    refuse(job, "there is no backend \"" + backend + "\"",
           "ask for \"shm\" or \"fake\", or leave it to the environment");
  }
  if (backend == "fake" || (backend.empty() && job.world_size == 1 && options.ranks_are == RanksAre::processes)) {
    if (job.world_size == 1) return std::make_shared<fake::FakeTransport>("world");
    refuse(job, "backend \"fake\" serves one rank, but " + std::to_string(job.world_size) + " were announced",
           "leave the backend to the environment");
  }
  if (job.local_world_size != job.world_size) {
    refuse(job,
           "backend \"shm\" serves the ranks of one node, but " + std::to_string(job.local_world_size) + " of " +
               std::to_string(job.world_size) + " ranks are on this one",
           "start all ranks on one node");
  }
  return open_shm(options, job, patience);
}

}  // namespace crossrank
