#pragma once
#include <cstdint>

namespace crossrank::test {

/// Counts the bytes that `operator new` allocates. The program must be linked with the meter's `operator new`.
class AllocationMeter {
 public:
  /// Starts a new measurement.
  static void start() noexcept;
  /// Returns the largest number of bytes allocated at one time since the start, beyond those allocated at the start.
  [[nodiscard]] static std::int64_t peak() noexcept;
};

}  // namespace crossrank::test
