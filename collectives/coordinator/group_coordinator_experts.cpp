#include <crossrank/group.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/coordinator/dense_operations.hpp"
#include "collectives/coordinator/coordinator_state.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank {
namespace {

/// Exchanges the number of rows of each rank. A rank whose tensors do not fit together reports that in this call, so
/// that no rank waits for it later.
std::vector<std::int64_t> exchange_rows(Collective const& group, std::vector<Tensor> const& tensors) {
  constexpr std::int64_t unfit = -1;
  auto const rows_of = [](Tensor const& tensor) {
    return tensor.defined() && !tensor.shape().empty() ? tensor.shape()[0] : unfit;
  };
  auto const rows = rows_of(tensors.front());
  auto const other = std::find_if(tensors.begin(), tensors.end(),
                                  [&](Tensor const& tensor) { return rows == unfit || rows_of(tensor) != rows; });
  auto sizes = group.all_gather_objects(other == tensors.end() ? rows : unfit);
  if (other != tensors.end()) {
    throw UsageError(usage_in(group, "dispatch", "the tensors have different numbers of rows",
                              "as many as " + to_string(tensors.front()), to_string(*other)));
  }
  auto const failed_rank = std::find(sizes.begin(), sizes.end(), unfit) - sizes.begin();
  if (failed_rank == std::ssize(sizes)) return sizes;
  auto info = usage_in(group, "dispatch",
                       "rank " + std::to_string(failed_rank) + " passed tensors with different numbers of rows");
  info.failed_ranks = {static_cast<int>(failed_rank)};
  info.remote_type = "crossrank::UsageError";
  throw RemoteError(std::move(info));
}

}  // namespace

Dispatched GroupCoordinator::dispatch(Tensor const& hidden_states, Tensor const& router_logits,
                                      DispatchOptions options) const {
  auto const& held = state("dispatch");
  bool const stays = !options.is_sequence_parallel && !held.data_parallel;
  auto const& group = options.is_sequence_parallel || stays ? held.device : *held.data_parallel;
  Dispatched out;
  if (stays || group.world_size() == 1) {
    out.hidden_states = hidden_states;
    out.router_logits = router_logits;
    out.extra_tensors = std::move(options.extra_tensors);
    return out;
  }
  std::vector<Tensor> tensors{hidden_states, router_logits};
  tensors.insert(tensors.end(), options.extra_tensors.begin(), options.extra_tensors.end());
  if (options.sizes.empty()) options.sizes = exchange_rows(group, tensors);
  auto joined = join_rows(group, tensors, options.sizes, "dispatch");
  out.hidden_states = std::move(joined[0]);
  out.router_logits = std::move(joined[1]);
  out.extra_tensors.assign(joined.begin() + 2, joined.end());
  out.route.sizes_ = std::move(options.sizes);
  out.route.group_ = group;
  return out;
}

Tensor GroupCoordinator::combine(Tensor const& hidden_states, ExpertRoute const& route, ReduceOrder order) const {
  auto const& held = state("combine");
  if (!route.group_) return hidden_states;
  auto const& sizes = route.sizes_;
  auto const total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (!hidden_states.defined() || hidden_states.shape().empty() || hidden_states.shape()[0] != total) {
    throw UsageError(usage_in(held.cpu, "combine", "the number of rows differs from the number dispatched",
                              std::to_string(total), to_string(hidden_states)));
  }
  if (hidden_states.numel() == 0) {
    auto const shape = hidden_states.shape().with(0, at_rank(sizes, route.group_->rank()));
    return Tensor::zeros(shape, hidden_states.dtype(), hidden_states.device());
  }
  return reduce_parts(*route.group_, hidden_states, sizes, order);
}

std::vector<std::int64_t> expert_sizes(std::vector<std::int64_t> const& tokens, ExpertChunk const& chunk) {
  if (chunk.sequence_parallel < 1 || chunk.index < 0 || (chunk.max_rows && *chunk.max_rows < 1)) {
    throw UsageError({.operation = "expert_sizes",
                      .message = "the chunk is invalid",
                      .expected = "sequence_parallel and max_rows of at least 1, index of at least 0"});
  }
  std::vector<std::int64_t> out;
  for (auto const count : tokens) {
    if (count < 0) {
      throw UsageError(
          {.operation = "expert_sizes", .message = "a number of tokens is negative", .got = std::to_string(count)});
    }
    auto rows = count / chunk.sequence_parallel + (count % chunk.sequence_parallel != 0 ? 1 : 0);
    if (chunk.max_rows) {
      // Divide first: the product of two large numbers could overflow.
      auto const left = chunk.index > rows / *chunk.max_rows ? 0 : rows - chunk.index * *chunk.max_rows;
      rows = std::max<std::int64_t>(1, std::min(*chunk.max_rows, left));
    }
    out.insert(out.end(), as_size(chunk.sequence_parallel), rows);
  }
  return out;
}

}  // namespace crossrank
