#pragma once
#include <crossrank/tensor.hpp>

namespace crossrank::test {

/// Where the cases of this thread make their tensors, until the end of the scope; otherwise on the CPU.
class CaseDevice {
 public:
  explicit CaseDevice(Device device) noexcept { current() = device; }
  ~CaseDevice() { current() = Device::cpu(); }
  CaseDevice(CaseDevice const&) = delete;
  CaseDevice& operator=(CaseDevice const&) = delete;

  [[nodiscard]] static Device& current() noexcept {
    thread_local Device device;
    return device;
  }
};

/// Returns a tensor of the CPU on the case's device.
[[nodiscard]] inline Tensor on_device(Tensor const& tensor) { return tensor.to(CaseDevice::current()); }
/// Returns a tensor of the case on the CPU, after all work of the current stream.
[[nodiscard]] inline Tensor on_host(Tensor const& tensor) { return tensor.to(Device::cpu()); }

}  // namespace crossrank::test
