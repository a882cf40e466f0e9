#pragma once
#include <optional>

#include <signal.h>

#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// Receives the signals that a job cares about as events instead of interruptions.
class SignalFd {
 public:
  SignalFd();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// The next signal that has arrived, if any.
  [[nodiscard]] std::optional<int> next() const;
  /// The mask that was in force before, for the programs that are started.
  [[nodiscard]] sigset_t const& original_mask() const noexcept { return original_; }

 private:
  sigset_t original_{};
  platform::Fd fd_;
};

}  // namespace crossrank::tools
