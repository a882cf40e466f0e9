#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Numbers that no weight should be.
struct NonFinite {
  std::uint64_t nans = 0;
  std::uint64_t infinities = 0;
  std::uint64_t first = 0;  ///< element at which the first of either stands
  [[nodiscard]] bool any() const noexcept { return nans + infinities > 0; }
};

/// Counts them in elements that stand one after another; `first` counts from `bytes`' first element. Integers and
/// formats that have neither give none.
[[nodiscard]] NonFinite count_non_finite(Dtype dtype, std::span<std::byte const> bytes);

struct ScanResult {
  std::vector<Defect> defects{};
  std::uint64_t bytes_read = 0;
};

/// Reads all data of the sources, each part on one rank, and looks for NaN and infinity. Collective; all findings on
/// every rank. What cannot be read is a finding, too.
[[nodiscard]] ScanResult scan_numbers(Collective const& world,
                                      std::span<std::shared_ptr<ShardSource const> const> sources,
                                      WorkerPoolOptions const& options);

/// Gathers the findings of all ranks, in order of resources. Collective.
[[nodiscard]] std::vector<Defect> gather_defects(Collective const& world, std::vector<Defect> const& mine);

}  // namespace crossrank::checkpoint
