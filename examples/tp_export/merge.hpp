#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "examples/tp_export/llama_sharding.hpp"
#include "examples/tp_export/shards.hpp"

namespace tp_export {

/// What a merge hands to the rank that exports.
struct Merged {
  xr::StateDict weights{};   ///< whole tensors; empty on the other ranks
  std::uint64_t joined = 0;  ///< bytes that joining the parts copied
};

/// Merges the shards of all ranks on rank 0, one round for each unit. Collective.
///
/// `on_unit(done)` is told how many units are merged. `std::runtime_error` on rank 0, and `xr::PeerLostError` with its
/// text on the others, when copies of a replicated tensor differ.
[[nodiscard]] Merged merge_shards(std::vector<Unit> const& units, LlamaSharding const& plan,
                                  xr::Collective const& world, xr::GatherOptions const& options,
                                  std::function<void(std::size_t done)> const& on_unit);

}  // namespace tp_export
