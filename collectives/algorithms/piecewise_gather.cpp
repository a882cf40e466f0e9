#include "collectives/algorithms/piecewise_gather.hpp"

#include "lib/core/at_rank.hpp"

namespace crossrank::algorithms {

void PiecewiseGather::show_pieces() {
  std::vector<std::span<std::byte const>> pieces;
  std::size_t at = 0;
  for (auto const bytes : step_counts_) {
    pieces.emplace_back(scratch_.data() + at, bytes);
    at += bytes;
  }
  take(at_, pieces);
}

std::optional<spi::RequestId> PiecewiseGather::next(spi::Transport& transport) {
  if (under_way_) {
    show_pieces();
    at_ += piece_bytes;
  }
  auto const longest = *std::max_element(counts_.begin(), counts_.end());
  if (under_way_ && at_ >= longest) return {};
  under_way_ = true;  // at least one step: a rank without bytes still takes part
  step_counts_.clear();
  for (auto const count : counts_) step_counts_.push_back(std::min(piece_bytes, count - std::min(count, at_)));
  scratch_.resize(std::accumulate(step_counts_.begin(), step_counts_.end(), std::size_t{0}));
  auto const own = at_rank(step_counts_, transport.rank());
  auto const piece = own == 0 ? std::span<std::byte const>{} : mine_.subspan(at_, own);
  return transport.post_all_gatherv(signature_, {.bytes = piece}, step_counts_, {.bytes = scratch_});
}

}  // namespace crossrank::algorithms
