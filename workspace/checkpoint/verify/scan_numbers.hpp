#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Counts of NaN and infinity.
struct NonFinite {
  std::uint64_t nans = 0;
  std::uint64_t infinities = 0;
  std::uint64_t first = 0;  ///< index of the first such element
  [[nodiscard]] bool any() const noexcept { return nans + infinities > 0; }
};

/// Counts them in contiguous elements; `first` is relative to the first element of `bytes`. Returns zeros for integers
/// and for formats without NaN and infinity.
[[nodiscard]] NonFinite count_non_finite(Dtype dtype, std::span<std::byte const> bytes);

struct ScanResult {
  std::vector<Defect> defects{};
  std::uint64_t bytes_read = 0;
};

/// Reads all data of the sources, each part on one rank, and finds NaN and infinity. Data that cannot be read is a
/// finding too. Returns the findings of all ranks. Collective.
[[nodiscard]] ScanResult scan_numbers(Collective const& world,
                                      std::span<std::shared_ptr<ShardSource const> const> sources,
                                      WorkerPoolOptions const& options);

/// Returns the file that an error of `source` names, or the name of the source.
[[nodiscard]] std::string unreadable_file(Error const& error, ShardSource const& source);

/// Gathers the findings of all ranks, sorted by resource. Collective.
[[nodiscard]] std::vector<Defect> gather_defects(Collective const& world, std::vector<Defect> const& mine);

}  // namespace crossrank::checkpoint
