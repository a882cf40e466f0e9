#include "merge.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tp_export {
namespace {

using Shards = xr::CollectiveRange<xr::StateDict>;

/// Returns this rank's own copy, which needs no copying. All copies must be equal.
xr::Tensor only_copy(Shards& shards, std::string const& name) {
  auto const& first = shards[0].at(name);
  for (std::size_t rank = 1; rank < shards.size(); ++rank) {
    auto const& other = shards[rank].at(name);
    if (first.shape() != other.shape() || !std::ranges::equal(first.bytes(), other.bytes())) {
      throw std::runtime_error("rank " + std::to_string(rank) + " has a different " + name + " than rank 0");
    }
  }
  return first;
}

xr::Tensor joined(Shards& shards, std::string const& name, xr::Dim dim) {
  std::vector<xr::Tensor> parts;
  for (auto const& shard : shards) parts.push_back(shard.at(name));
  return xr::concat(parts, dim);
}

/// Returns views of the tensors for the checkpoint, without the second names of tensors.
xr::StateDict without_dropped(xr::StateDict const& weights, LlamaSharding const& plan) {
  xr::StateDict exported;
  for (auto const& [name, tensor] : weights) {
    if (plan.placement_of(name) != Placement::dropped) exported.insert_or_assign(name, tensor);
  }
  return exported;
}

void merge_unit(xr::StateDict const& mine, LlamaSharding const& plan, Shards& shards, Merged& out) {
  for (auto const& [name, part] : mine) {
    auto const placement = plan.placement_of(name);
    if (placement == Placement::replicated) {
      out.weights.insert_or_assign(name, only_copy(shards, name));
      continue;
    }
    auto whole = joined(shards, name, {placement == Placement::row ? 1 : 0});
    out.joined += whole.nbytes();
    out.weights.insert_or_assign(name, std::move(whole));
  }
}

}  // namespace

Merged merge_shards(std::vector<Unit> const& units, LlamaSharding const& plan, xr::Collective const& world,
                    xr::GatherOptions const& options, std::function<void(std::size_t done)> const& on_unit) {
  Merged merged;
  std::size_t done = 0;
  for (auto const& unit : units) {
    auto const mine = without_dropped(unit.weights, plan);
    auto shards = xr::get_tensors_parallel(mine, world, options);  // publish, then exchange with all ranks in one round
    // `consume` ends with the second round. It sends the text of an exception to the other ranks.
    shards.consume([&](Shards& received) {
      if (!received.empty()) merge_unit(mine, plan, received, merged);
    });
    on_unit(++done);
  }
  return merged;
}

}  // namespace tp_export
