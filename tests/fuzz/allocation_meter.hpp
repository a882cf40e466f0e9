#pragma once
#include <cstdint>

namespace crossrank::test {

/// Bytes that `operator new` gives out in this program, which is linked with the meter's own.
class AllocationMeter {
 public:
  /// Begins anew from what is held now.
  static void start() noexcept;
  /// The most that was held since then, above what was held at the start.
  [[nodiscard]] static std::int64_t peak() noexcept;
};

}  // namespace crossrank::test
