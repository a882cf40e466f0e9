#include <atomic>
#include <optional>
#include <string>

#include <crossrank/cuda.hpp>
#include <crossrank/device.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"
#include "lib/core/settings.hpp"

namespace crossrank {
namespace {

/// Returns whether the variable names one GPU for this process, as Slurm and Ray set it for each rank. How many GPUs
/// the node has is then unknown.
bool has_gpu_of_its_own() {
  auto const visible = variable_of_process("CUDA_VISIBLE_DEVICES");
  return visible && !visible->empty() && visible->find(',') == std::string::npos;
}

/// Says once that ranks of this node share GPUs.
void warn_of_sharing(int ranks, int devices) {
  static constinit std::atomic<bool> warned{false};
  if (ranks <= devices || has_gpu_of_its_own() || warned.exchange(true, std::memory_order_relaxed))
    return;  // pairs with nothing
  log_event(LogLevel::warning, "ranks of this node share a GPU",
            {{"ranks", std::to_string(ranks)}, {"gpus", std::to_string(devices)}});
}

std::optional<Device>& device_of_thread() noexcept {
  thread_local std::optional<Device> device;
  return device;
}

}  // namespace

void set_default_device(std::optional<Device> device) {
  if (device && device->kind == Device::Kind::cuda)
    static_cast<void>(cuda::device_info(*device));  // throws if there is no such GPU
  device_of_thread() = device;
}

Device default_device() {
  if (auto const device = device_of_thread()) return *device;
  auto const devices = cuda::device_count();
  if (devices == 0) return Device::cpu();
  auto const& launched = launched_environment();
  // Without a local rank, the launcher is one that numbers the ranks of a node one after the other.
  auto const rank = launched.local_rank.value_or(launched.rank);
  warn_of_sharing(launched.local_world_size.value_or(1), devices);
  return Device::cuda(rank % devices);
}

}  // namespace crossrank
