#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/mpi.hpp>
#include <crossrank/spi/add_node_memory.hpp>
#include <crossrank/spi/network.hpp>
#include <crossrank/spi/plugin.hpp>
#include <crossrank/spi/resolve_options.hpp>

#include "collectives/mpi/mpi_packet_transport.hpp"
#include "collectives/mpi/mpi_process.hpp"

namespace crossrank::mpi {
namespace {

std::shared_ptr<spi::Transport> open(spi::PluginRequest const& request) {
  auto& process = Process::instance();
  process.initialize(request.connect_timeout);
  int rank = 0;
  int ranks = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
  if ((request.world_size != 0 && ranks != request.world_size) || rank != request.rank) {
    throw UnavailableError({.operation = "connect",
                            .message = "MPI reports another rank or world size than the launcher",
                            .expected = "rank " + std::to_string(request.rank) +
                                        (request.world_size == 0 ? "" : " of " + std::to_string(request.world_size)),
                            .got = "rank " + std::to_string(rank) + " of " + std::to_string(ranks),
                            .hint = "start with mpirun, or with srun --mpi=pmix",
                            .group_usable = false});
  }
  return process.open(MPI_COMM_WORLD, request.connect_timeout)
      ->open_world({.job = request.job,
                    .timeout_policy = request.timeout_policy,
                    .connect_timeout = request.connect_timeout,
                    .backend = request.backend});
}

Collective connect_by_handle(int handle, ConnectOptions const& options) {
  Process::instance().require_initialized("mpi::connect");  // before it, MPI does not know the handle
  return connect(MPI_Comm_f2c(handle), options);
}

}  // namespace

Collective connect(MPI_Comm communicator, ConnectOptions const& wanted) {
  auto const options = spi::resolve_options(wanted, "mpi::connect");
  auto& process = Process::instance();
  process.require_initialized("mpi::connect");
  if (!options.backend.empty() && options.backend != "mpi" && options.backend != "composite") {
    throw UsageError({.operation = "mpi::connect",
                      .message = "this backend cannot use a communicator",
                      .expected = "\"mpi\", \"composite\" or nothing",
                      .got = options.backend});
  }
  spi::TimeoutPolicy const timeout_policy{.timeout = options.timeout, .user_limit = options.user_limit};
  auto world = process.open(communicator, *options.connect_timeout)
                   ->open_world({.job = "communicator",
                                 .timeout_policy = timeout_policy,
                                 .connect_timeout = *options.connect_timeout,
                                 .backend = options.backend == "mpi" ? "mpi" : "composite"});
  if (options.backend != "mpi") {
    world = spi::add_node_memory(std::move(world), {.timeout_policy = timeout_policy,
                                                    .connect_timeout = *options.connect_timeout,
                                                    .arena_cap = options.arena_cap,
                                                    .job = options.job_id});
  }
  return make_collective(std::move(world), timeout_policy, options.check.value_or(CheckLevel::local), options.progress);
}

MPI_Comm communicator_of(ProcessGroup const& group) {
  if (group.vendor == "mpi" && group.handle) return *static_cast<MPI_Comm const*>(group.handle.get());
  throw UsageError({.operation = "mpi::communicator_of",
                    .message = "this is not an MPI group",
                    .expected = "mpi",
                    .got = std::string(group.vendor)});
}

}  // namespace crossrank::mpi

extern "C" CROSSRANK_EXPORT crossrank::spi::Plugin const* crossrank_plugin() noexcept {
  static constexpr crossrank::spi::Plugin plugin{crossrank::spi::build_stamp, &crossrank::mpi::open,
                                                 &crossrank::mpi::connect_by_handle};
  return &plugin;
}
