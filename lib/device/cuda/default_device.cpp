#include <atomic>
#include <string>

#include <crossrank/cuda.hpp>
#include <crossrank/device.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"

namespace crossrank {
namespace {

/// Says once that ranks of this node share GPUs.
void warn_of_sharing(int ranks, int devices) {
  static constinit std::atomic<bool> told{false};
  if (ranks <= devices || told.exchange(true, std::memory_order_relaxed)) return;  // pairs with nothing
  log_event(LogLevel::warning, "ranks of this node share a GPU",
            {{"ranks", std::to_string(ranks)}, {"gpus", std::to_string(devices)}});
}

}  // namespace

Device default_device() {
  auto const devices = cuda::device_count();
  if (devices == 0) return Device::cpu();
  auto const& launched = launched_environment();
  // Without a local rank, the launcher is one that numbers the ranks of a node one after the other.
  auto const rank = launched.local_rank.value_or(launched.rank);
  warn_of_sharing(launched.local_world_size.value_or(1), devices);
  return Device::cuda(rank % devices);
}

}  // namespace crossrank
