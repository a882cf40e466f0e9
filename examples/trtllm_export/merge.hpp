#pragma once
#include <vector>

#include <crossrank/crossrank.hpp>

namespace trtllm_export {

/// A model, or the part of it that a rank holds.
struct Model {
  std::vector<xr::RankState> layers{};
  xr::RankState ends{};  ///< embedding, last norm, head
};

/// Collects the layers of all stages of `pp` on its first rank, in model order; stages may have different numbers of
/// layers. Returns an empty model on the other ranks. Collective; one gather per layer of the longest stage.
[[nodiscard]] Model merge_stages(Model const& mine, xr::Collective const& pp);

/// Joins the parts of all ranks of `tp` on its first rank. Returns an empty model on the other ranks. A merged scale is
/// the largest of its parts. Replicated tensors must be bitwise equal; otherwise throws `std::runtime_error`.
/// Collective; one gather per layer.
[[nodiscard]] Model merge_ranks(Model const& mine, xr::Collective const& tp);

}  // namespace trtllm_export
