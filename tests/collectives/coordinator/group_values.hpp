#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include <crossrank/group.hpp>

namespace crossrank::test {

/// Returns the values 0, 1, 2, ... times `factor` plus `offset`.
template <class T = float>
[[nodiscard]] Tensor counting(Shape const& shape, T factor = 1, T offset = 0) {
  std::vector<T> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<T>(i) * factor + offset);
  return Tensor::of<T>(values, shape);
}

/// Returns the tokens of a rank. Their number differs between ranks, and rank 1 has none.
[[nodiscard]] inline Tensor tokens_of(int rank) {
  return counting({rank == 1 ? 0 : 2 + rank, 3}, 1.F, static_cast<float>(100 * rank));
}

template <class T = float>
[[nodiscard]] std::vector<T> values_of(Tensor const& tensor) {
  auto const span = tensor.as<T>();
  return {span.begin(), span.end()};
}

/// Returns whether dtype, shape and bytes are the same.
[[nodiscard]] inline bool same(Tensor const& a, Tensor const& b) {
  return a.defined() == b.defined() &&
         (!a.defined() || (a.dtype() == b.dtype() && a.shape() == b.shape() &&
                           std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end())));
}

/// Returns the group of all ranks.
[[nodiscard]] inline GroupCoordinator whole(Collective const& world, GroupOptions options = {}) {
  std::vector<int> ranks(static_cast<std::size_t>(world.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return GroupCoordinator::create(world, {ranks}, std::move(options));
}

}  // namespace crossrank::test
