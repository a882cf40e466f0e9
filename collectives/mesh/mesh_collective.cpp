#include <crossrank/mesh.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/mesh/job_collective_state.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank {
namespace {

void require_divides(char const* what, int whole, std::string const& by_what, std::int64_t by) {
  if (by >= 1 && whole % by == 0) return;
  throw UsageError({.operation = "MeshCollective",
                    .message = std::string(what) + " is not divisible by " + by_what,
                    .expected = "a divisor of " + std::to_string(whole),
                    .got = std::to_string(by)});
}

Collective group_for(Collective const& world, std::vector<int> const& ranks) {
  if (ranks.empty()) return world;
  auto group = world.split({ranks}, "mesh");
  if (group.connected()) return group;
  throw UsageError(error_in(*world.transport(), {.operation = "MeshCollective", .message = "this rank is not listed"}));
}

/// Returns, for each rank, the first rank on its node, as the transport reports it.
std::vector<int> first_on_nodes(Collective const& group) {
  return group.all_gather_objects(group.transport()->node_ranks().front());
}

/// Requires that every node is a row of the mesh, so its ranks must be consecutive. Otherwise `local()` would span
/// nodes.
void require_rows(Collective const& group, std::vector<int> const& firsts, int local) {
  for (int rank = 0; rank < group.world_size(); ++rank) {
    int const first = at_rank(firsts, rank);
    if (first == rank / local * local) continue;
    throw UsageError(error_in(
        *group.transport(),
        {.operation = "MeshCollective",
         .message = "nodes do not have equal numbers of consecutive ranks",
         .expected = "rank " + std::to_string(rank) + " on the node of rank " + std::to_string(rank / local * local),
         .got = "on the node of rank " + std::to_string(first),
         .hint = "place the same number of consecutive ranks on each node (mpirun --map-by slot, srun "
                 "--distribution=block), or give local_world_size"}));
  }
}

/// Returns, for each tensor-parallel rank, the ranks of the job that have it.
std::vector<std::vector<int>> columns(int ranks, int tp_size) {
  auto out = per_rank<std::vector<int>>(tp_size);
  for (int rank = 0; rank < ranks; ++rank) at_rank(out, rank % tp_size).push_back(rank);
  return out;
}

/// The sizes of a mesh, checked against each other.
struct Sizes {
  int ranks = 1;
  int local = 1;  ///< ranks per node
  int tp = 1;
  int sharding = 1;

  [[nodiscard]] int replicas() const noexcept { return ranks / (sharding * tp); }
};

Sizes sizes_of(Collective const& group, MeshOptions const& options) {
  Sizes sizes{.ranks = group.world_size(), .tp = options.tp_size};
  auto const firsts = options.local_world_size ? std::vector<int>() : first_on_nodes(group);
  sizes.local = options.local_world_size ? *options.local_world_size
                                         : static_cast<int>(std::count(firsts.begin(), firsts.end(), firsts.front()));
  require_divides("the number of ranks", sizes.ranks, "tp_size", sizes.tp);
  require_divides("the number of ranks", sizes.ranks, "the ranks of a node", sizes.local);
  require_divides("the ranks of a node", sizes.local, "tp_size", sizes.tp);
  sizes.sharding = options.sharding_world_size.value_or(sizes.local / sizes.tp);
  require_divides("the number of ranks", sizes.ranks, "sharding_world_size x tp_size",
                  sizes.sharding < 1 ? 0 : std::int64_t{sizes.sharding} * sizes.tp);
  if (!options.local_world_size) require_rows(group, firsts, sizes.local);
  return sizes;
}

/// Returns a group of this rank alone: an axis of size 1 of the meshes, or a new group. All ranks make the same choice.
Collective alone_in(Collective const& group, Mesh const& mesh, Mesh const& nodes) {
  for (auto const* axis : {"dp_replicate", "dp_shard", "tp"}) {
    if (mesh[axis].world_size() == 1) return mesh[axis];
  }
  for (auto const* axis : {"nodes", "local_ranks"}) {
    if (nodes[axis].world_size() == 1) return nodes[axis];
  }
  return group.split(columns(group.world_size(), group.world_size()), "self");
}

}  // namespace

std::shared_ptr<JobCollective::State> MeshCollective::make(Collective const& world, MeshOptions const& options) {
  require_open(world, "MeshCollective");
  auto const group = group_for(world, options.ranks);
  auto const sizes = sizes_of(group, options);
  Mesh const mesh(
      group, std::vector<Axis>{{"dp_replicate", sizes.replicas()}, {"dp_shard", sizes.sharding}, {"tp", sizes.tp}});
  Mesh const nodes(group, std::vector<Axis>{{"nodes", sizes.ranks / sizes.local}, {"local_ranks", sizes.local}});
  auto const& local = nodes["local_ranks"];
  auto const dp = group.split(columns(sizes.ranks, sizes.tp), "dp");
  auto const local_dp = sizes.local == sizes.ranks ? dp : local.split(columns(sizes.local, sizes.tp), "dp");
  auto const tp_job = JobCollective::of(std::make_shared<State>(
      State{.world = mesh["tp"], .dp = alone_in(group, mesh, nodes), .device = options.device}));
  auto const local_job = JobCollective::of(
      std::make_shared<State>(State{.world = local, .dp = local_dp, .device = options.device, .tp = tp_job}));
  return std::make_shared<State>(
      State{.world = group,
            .dp = dp,
            .device = options.device,
            .local = local_job,
            .tp = tp_job,
            .mesh = mesh,
            .nodes = nodes,
            .dp_mesh = Mesh(dp, std::vector<Axis>{{"dp_replicate", sizes.replicas()}, {"dp_shard", sizes.sharding}}),
            .tp_mesh = Mesh(mesh["tp"], std::vector<Axis>{{"tp", sizes.tp}})});
}

MeshCollective::MeshCollective(Collective const& world, MeshOptions const& options)
    : JobCollective(make(world, options)) {}

Mesh const& MeshCollective::dp_mesh() const noexcept { return *state_->dp_mesh; }
Mesh const& MeshCollective::tp_mesh() const noexcept { return *state_->tp_mesh; }
Mesh const& MeshCollective::node_mesh() const noexcept { return *state_->nodes; }

MeshGroupCoordinator::MeshGroupCoordinator(Collective const& world, std::vector<MeshPartition> partitions,
                                           std::optional<Device> device)
    : partitions_(std::move(partitions)) {
  auto const refuse = [&](std::string message, std::string const& name) {
    throw UsageError(error_in(*world.transport(),
                              {.operation = "MeshGroupCoordinator", .message = std::move(message), .resource = name}));
  };
  std::set<std::string> names;
  std::set<int> listed;
  std::vector<std::vector<int>> lists;
  for (std::size_t i = 0; i < partitions_.size(); ++i) {
    auto const& [name, ranks, tp_size, sharding, local] = partitions_[i];
    if (!names.insert(name).second) refuse("two partitions have the same name", name);
    if (ranks.empty()) refuse("the partition has no ranks", name);
    for (int const rank : ranks) {
      if (rank < 0 || rank >= world.world_size())
        refuse("rank " + std::to_string(rank) + " of the partition is not a rank of the group", name);
      if (!listed.insert(rank).second)
        refuse("rank " + std::to_string(rank) + " of the partition is already in another partition", name);
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
