#pragma once
#include <exception>

#include <crossrank/device.hpp>

namespace crossrank {

/// Notes that work of a device was ended before its end, so that its results are undetermined. The streams of the
/// device continue as if nothing had happened, so the next wait of the host throws `failure`. Any thread.
void note_device_failure(Device device, std::exception_ptr failure) noexcept;

/// Throws a failure that was noted for the device, once. Without a failure it costs one load. Any thread may call it.
void throw_device_failure(Device device);

/// Forgets a failure that the caller has learnt in another way. Any thread.
void forget_device_failure(Device device, std::exception_ptr const& failure) noexcept;

/// While it exists, waits of the host that time out keep waiting for the watchdog's verdict. Any thread.
class PendingVerdictScope {
 public:
  PendingVerdictScope() noexcept;
  ~PendingVerdictScope();
  PendingVerdictScope(PendingVerdictScope const&) = delete;
  PendingVerdictScope& operator=(PendingVerdictScope const&) = delete;
};

/// Returns whether there is a `PendingVerdictScope`. One load.
[[nodiscard]] bool verdict_is_due() noexcept;

}  // namespace crossrank
