#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "llama_sharding.hpp"
#include "shards.hpp"

namespace tp_export {

/// The result of a merge.
struct Merged {
  xr::StateDict weights{};   ///< the whole tensors; empty on all ranks but rank 0
  std::uint64_t joined = 0;  ///< bytes copied while joining the parts
};

/// Merges the shards of all ranks on rank 0, with one range per unit. Collective.
///
/// Calls `on_unit` with the number of merged units. When copies of a replicated tensor differ, throws
/// `std::runtime_error` on rank 0, and `xr::PeerLostError` with its text on the other ranks.
[[nodiscard]] Merged merge_shards(std::vector<Unit> const& units, LlamaSharding const& plan,
                                  xr::Collective const& world, xr::GatherOptions const& options,
                                  std::function<void(std::size_t done)> const& on_unit);

}  // namespace tp_export
