#include <crossrank/device.hpp>

namespace crossrank {

std::string to_string(Device device) {
  switch (device.kind) {
    case Device::Kind::cpu: return "cpu";
    case Device::Kind::cuda: return "cuda:" + std::to_string(device.index);
  }
  return "unknown";
}

}  // namespace crossrank
