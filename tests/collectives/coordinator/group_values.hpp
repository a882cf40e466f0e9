#pragma once
#include <algorithm>
#include <vector>

#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"

namespace crossrank::test {

/// Returns the values 0, 1, 2, ... times `factor` plus `offset`, on the case's device.
template <class T = float>
[[nodiscard]] Tensor counting(Shape const& shape, T factor = 1, T offset = 0) {
  std::vector<T> values(as_size(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<T>(i) * factor + offset);
  return on_device(Tensor::of<T>(values, shape));
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

/// Returns whether dtype, shape, kind of device and bytes are the same.
[[nodiscard]] inline bool same(Tensor const& a, Tensor const& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.dtype() != b.dtype() || a.shape() != b.shape() || a.device().kind != b.device().kind) return false;
  auto const first = on_host(a);
  auto const second = on_host(b);
  return std::equal(first.bytes().begin(), first.bytes().end(), second.bytes().begin(), second.bytes().end());
}

/// Divides each four ranks into pairs: of neighbours with distance 1 ({0, 1}, {2, 3}), else {0, 2}, {1, 3}.
[[nodiscard]] inline std::vector<std::vector<int>> pairs(int ranks, int distance) {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank / distance % 2 == 0) all.push_back({rank, rank + distance});
  }
  return all;
}

/// Makes groups for tensors of the case's device.
[[nodiscard]] inline GroupCoordinator made(Collective const& world, std::vector<std::vector<int>> const& groups,
                                           GroupOptions options = {}) {
  if (CaseDevice::current().kind != Device::Kind::cpu) options.device_communicator = true;
  return GroupCoordinator::create(world, groups, std::move(options));
}

/// Returns the group of all ranks.
[[nodiscard]] inline GroupCoordinator whole(Collective const& world, GroupOptions options = {}) {
  auto ranks = all_ranks(world.world_size());
  return made(world, {ranks}, std::move(options));
}

}  // namespace crossrank::test
