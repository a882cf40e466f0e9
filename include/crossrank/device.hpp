#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <crossrank/export.hpp>

namespace crossrank {

/// The place of a tensor's bytes.
struct Device {
  /// The kinds of memory.
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;  ///< CPU or GPU
  int index = 0;          ///< number of the device among those of its kind

  /// Returns the host. Local, free.
  [[nodiscard]] static constexpr Device cpu() noexcept { return {}; }
  /// Returns a GPU by its number among those that `CUDA_VISIBLE_DEVICES` leaves. Local, free; does not look for it.
  [[nodiscard]] static constexpr Device cuda(int index = 0) noexcept { return {Kind::cuda, index}; }
  /// Returns whether both are the same device.
  bool operator==(Device const&) const = default;
};

/// Returns "cpu" or "cuda:0". Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Device device);

/// Returns the GPU of this rank, or the CPU when there is no GPU or no driver.
///
/// Local. It is the device that this thread has set with `set_default_device`, else the GPU of the process. The GPU's
/// number is the rank of this process on its node, as the launcher gives it, modulo the number of GPUs. The first call
/// logs a warning when ranks of the node share a GPU. `UsageError` for a malformed variable of the launcher or
/// `CROSSRANK_` variable.
[[nodiscard]] CROSSRANK_EXPORT Device default_device();

/// Sets `default_device()` of the calling thread. `std::nullopt` restores the default of the process. For ranks that
/// are threads of one process with a GPU each, as `torch.cuda.set_device`.
///
/// Local. `UnavailableError` without a driver; `UsageError` for a GPU that does not exist.
CROSSRANK_EXPORT void set_default_device(std::optional<Device> device);

}  // namespace crossrank
