#include <crossrank/mesh.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/job_state.hpp"

namespace crossrank {
namespace {

void require_divides(char const* what, int whole, std::string const& by_what, std::int64_t by) {
  if (by >= 1 && whole % by == 0) return;
  throw UsageError({.operation = "MeshCollective",
                    .message = std::string(what) + " does not divide by " + by_what,
                    .expected = "a divisor of " + std::to_string(whole),
                    .got = std::to_string(by)});
}

Collective group_for(Collective const& world, std::vector<int> const& ranks) {
  if (ranks.empty()) return world;
  auto group = world.split({ranks}, "mesh");
  if (group.connected()) return group;
  throw UsageError({.operation = "MeshCollective",
                    .message = "this rank is not among those listed",
                    .group = world.name(),
                    .rank = world.rank(),
                    .world_size = world.world_size()});
}

/// The first rank on the node of each rank, as the transport knows.
std::vector<int> first_on_nodes(Collective const& group) {
  return group.all_gather_objects(group.transport()->node_ranks().front());
}

/// Nodes are rows of the mesh: their ranks must follow one another, or `local()` would reach across nodes.
void require_rows(Collective const& group, std::vector<int> const& firsts, int local) {
  for (int rank = 0; rank < group.world_size(); ++rank) {
    int const first = firsts[static_cast<std::size_t>(rank)];
    if (first == rank / local * local) continue;
    throw UsageError(
        {.operation = "MeshCollective",
         .message = "the ranks of a node do not follow one another in equal numbers",
         .expected = "rank " + std::to_string(rank) + " on the node of rank " + std::to_string(rank / local * local),
         .got = "on that of rank " + std::to_string(first),
         .remedy = "place as many ranks on each node, one node after the other (mpirun --map-by slot, srun "
                   "--distribution=block), or give local_world_size",
         .group = group.name(),
         .rank = group.rank(),
         .world_size = group.world_size()});
  }
}

/// The ranks that have one tensor-parallel rank, for each of those.
std::vector<std::vector<int>> columns(int ranks, int tp_size) {
  std::vector<std::vector<int>> out(static_cast<std::size_t>(tp_size));
  for (int rank = 0; rank < ranks; ++rank) out[static_cast<std::size_t>(rank % tp_size)].push_back(rank);
  return out;
}

}  // namespace

MeshCollective::MeshCollective(Collective const& world, MeshOptions const& options)
    : JobCollective(std::make_shared<State>()) {
  state_->world = group_for(world, options.ranks);
  auto const& group = state_->world;
  int const ranks = group.world_size();
  int const tp = options.tp_size;
  auto const firsts = options.local_world_size ? std::vector<int>() : first_on_nodes(group);
  int const local = options.local_world_size
                        ? *options.local_world_size
                        : static_cast<int>(std::count(firsts.begin(), firsts.end(), firsts.front()));
  require_divides("the number of ranks", ranks, "tp_size", tp);
  require_divides("the number of ranks", ranks, "the ranks of a node", local);
  require_divides("the ranks of a node", local, "tp_size", tp);
  int const sharding = options.sharding_world_size.value_or(local / tp);
  require_divides("the number of ranks", ranks, "sharding_world_size x tp_size",
                  sharding < 1 ? 0 : std::int64_t{sharding} * tp);
  if (!options.local_world_size) require_rows(group, firsts, local);
  state_->device = options.device;
  state_->local_world_size = local;
  state_->mesh.emplace(
      group, std::vector<Axis>{{"dp_replicate", ranks / (sharding * tp)}, {"dp_shard", sharding}, {"tp", tp}});
  state_->nodes.emplace(group, std::vector<Axis>{{"nodes", ranks / local}, {"local_ranks", local}});
  state_->tp = (*state_->mesh)["tp"];
  state_->local = (*state_->nodes)["local_ranks"];
  state_->local_rank = state_->nodes->coordinate("local_ranks");
  state_->dp = group.split(columns(ranks, tp), "dp");
  state_->dp_mesh.emplace(state_->dp,
                          std::vector<Axis>{{"dp_replicate", ranks / (sharding * tp)}, {"dp_shard", sharding}});
  state_->tp_mesh.emplace(state_->tp, std::vector<Axis>{{"tp", tp}});
}

Mesh const& MeshCollective::dp_mesh() const noexcept { return *state_->dp_mesh; }
Mesh const& MeshCollective::tp_mesh() const noexcept { return *state_->tp_mesh; }
Mesh const& MeshCollective::node_mesh() const noexcept { return *state_->nodes; }

MeshGroupCoordinator::MeshGroupCoordinator(Collective const& world, std::vector<MeshPartition> partitions,
                                           Device device)
    : partitions_(std::move(partitions)) {
  auto const refuse = [&](std::string message, std::string const& name) {
    throw UsageError({.operation = "MeshGroupCoordinator",
                      .message = std::move(message),
                      .resource = name,
                      .group = world.name(),
                      .rank = world.rank(),
                      .world_size = world.world_size()});
  };
  std::set<std::string> names;
  std::set<int> listed;
  std::vector<std::vector<int>> lists;
  for (std::size_t i = 0; i < partitions_.size(); ++i) {
    auto const& [name, ranks, tp_size, sharding, local] = partitions_[i];
    if (!names.insert(name).second) refuse("two partitions have this name", name);
    if (ranks.empty()) refuse("the partition has no ranks", name);
    for (int const rank : ranks) {
      if (rank < 0 || rank >= world.world_size())
        refuse("rank " + std::to_string(rank) + " of the partition is no rank of the group", name);
      if (!listed.insert(rank).second)
        refuse("rank " + std::to_string(rank) + " of the partition is in a partition already", name);
      if (rank == world.rank()) index_ = i;
    }
    lists.push_back(ranks);
  }
  auto const group = world.split(lists, "partition");
  if (!index_) return;
  auto const& own = partitions_[*index_];
  own_.emplace(group, MeshOptions{.tp_size = own.tp_size,
                                  .sharding_world_size = own.sharding_world_size,
                                  .local_world_size = own.local_world_size,
                                  .device = device});
}

MeshPartition const* MeshGroupCoordinator::partition() const noexcept {
  return index_ ? &partitions_[*index_] : nullptr;
}

}  // namespace crossrank
