#pragma once
#include <vector>

#include <crossrank/crossrank.hpp>

namespace trtllm_export {

/// A model, or the part of one that a rank holds.
struct Model {
  std::vector<xr::RankState> layers{};
  xr::RankState ends{};  ///< embedding, last norm, head
};

/// Collects the layers of all stages of `pp` on its first rank, in the order of the model, whatever their numbers;
/// empty on the others. Collective; one gather per layer of the longest stage.
[[nodiscard]] Model merge_stages(Model const& mine, xr::Collective const& pp);

/// Joins the parts of all ranks of `tp` on its first rank; empty on the others. Scales become the largest; what every
/// rank has must be equal, bit for bit: `std::runtime_error` otherwise. Collective; one gather per layer.
[[nodiscard]] Model merge_ranks(Model const& mine, xr::Collective const& tp);

}  // namespace trtllm_export
