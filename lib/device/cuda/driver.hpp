#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/device/cuda/driver_api.hpp"
#include "lib/device/cuda/driver_errors.hpp"

namespace crossrank::cuda {

/// The CUDA driver of this process.
struct Driver {
  std::string path{};    ///< file that was opened
  int version = 0;       ///< 1000 * major + 10 * minor
  int device_count = 0;  ///< visible GPUs; 0 is not an error here
  api::Functions functions{};
  std::vector<std::string> missing{};  ///< optional functions that the driver lacks
};

/// Opens the driver at the first call and initializes it.
///
/// `UnavailableError` without a driver, or with one that is too old or does not start, again at each call; `UsageError`
/// in a child of a process that had opened it before it forked.
[[nodiscard]] Driver const& driver();

/// Returns the driver if it is open in this process, else null: a child after `fork` has none. For destructors.
[[nodiscard]] Driver const* open_driver() noexcept;

/// Throws unless `result` is success.
inline void check(Driver const& driver, api::Result result, char const* function, char const* operation) {
  if (result != api::Result::success) throw_driver_error(driver.functions, result, function, operation);
}

}  // namespace crossrank::cuda
