// The devices of this host as one process sees them.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace emulated {

/// The largest pitch of a copy of several rows, in bytes.
inline constexpr int max_pitch = 0x7fffffff;

struct Device {
  int physical = 0;  // index on the host, independent of CUDA_VISIBLE_DEVICES
  std::array<unsigned char, 16> uuid{};
  std::string pci;
};

/// The visible devices, in the order of CUDA_VISIBLE_DEVICES.
std::vector<Device> const& devices();

/// True when kernels on `from` can reach the memory of `to` after peer access is enabled.
bool peers(int from, int to);

}  // namespace emulated
