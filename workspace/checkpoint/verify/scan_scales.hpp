#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

/// Which scales are read.
enum class ScaleScope : std::uint8_t {
  small,  ///< at most `small_scale_bytes`: single values, one per channel
  all,
};

inline constexpr std::uint64_t small_scale_bytes = std::uint64_t{64} << 10;

/// Reads the scales of all sources and finds invalid ones: a single scale that is not positive, a scale tensor of zeros
/// only, negative scales in formats without them, and with `ScaleScope::small` NaN and infinity, which `scan_numbers`
/// finds otherwise. Collective; each rank reads its share.
[[nodiscard]] std::vector<Defect> scan_scales(Collective const& world,
                                              std::span<std::shared_ptr<ShardSource const> const> sources,
                                              ScaleScope reach, WorkerPoolOptions const& options);

}  // namespace crossrank::checkpoint
