#pragma once
#include <string>

namespace crossrank::platform {

/// The machine of this process, as far as shared memory is concerned.
struct Host {
  std::string id{};    ///< names this boot of the kernel and this network namespace, the reach of sockets
  std::string name{};  ///< host name, for messages
};

/// Returns the machine of this process.
[[nodiscard]] Host this_host();

}  // namespace crossrank::platform
