#include <crossrank/group/parallel_layout.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

constexpr std::size_t axes = 5;
using Coordinates = std::array<int, axes>;  // external data, data, pipeline, prefill context, tensor parallel

Coordinates coordinates_of(int rank, Coordinates const& sizes) {
  Coordinates coordinates{};
  for (std::size_t axis = axes; axis-- > 0;) {
    coordinates[axis] = rank % sizes[axis];
    rank /= sizes[axis];
  }
  return coordinates;
}

/// Returns the groups of ranks that differ only in the `merged` axes, in ascending order within and between groups.
std::vector<std::vector<int>> groups_over(int ranks, Coordinates const& sizes, std::array<bool, axes> const& merged) {
  std::map<Coordinates, std::size_t> index;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < ranks; ++rank) {
    auto coordinates = coordinates_of(rank, sizes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (merged[axis]) coordinates[axis] = 0;
    }
    auto const [at, is_new] = index.emplace(coordinates, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(rank);
  }
  return groups;
}

}  // namespace

ParallelLayout parallel_layout(ParallelSizes const& sizes) {
  Coordinates const all{sizes.external_data_parallel, sizes.data_parallel, sizes.pipeline_parallel,
                        sizes.prefill_context_parallel, sizes.tensor_parallel};
  std::int64_t ranks = 1;
  for (int const size : all) {
    ranks *= size;
    if (size >= 1 && ranks <= std::int64_t{1} << 30) continue;
    throw UsageError({.operation = "parallel_layout",
                      .message = "an axis has no ranks, or the axes have too many in total",
                      .expected = "sizes of at least 1, at most 2^30 ranks",
                      .got = std::to_string(size)});
  }
  auto const over = [&](std::array<bool, axes> const& merged) {
    return groups_over(static_cast<int>(ranks), all, merged);
  };
  return {.data_parallel = over({false, true, false, false, false}),
          .pipeline_parallel = over({false, false, true, false, false}),
          .prefill_context_parallel = over({false, false, false, true, false}),
          .tensor_parallel = over({false, false, false, false, true}),
          .expert_parallel = over({false, true, false, true, true})};
}

}  // namespace crossrank
