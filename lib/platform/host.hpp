#pragma once
#include <string>

namespace crossrank::platform {

/// The machine that this process runs on, as far as sharing memory goes.
struct Host {
  std::string id{};    ///< of this start of the kernel and this network namespace: sockets do not reach further
  std::string name{};  ///< for people
};

[[nodiscard]] Host this_host();

}  // namespace crossrank::platform
