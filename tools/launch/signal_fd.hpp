#pragma once
#include <optional>

#include <signal.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {

/// Receives the signals that concern a job through a file descriptor.
class SignalFd {
 public:
  SignalFd();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Returns the next signal that has arrived, if any.
  [[nodiscard]] std::optional<int> next() const;
  /// Returns the previous signal mask, which the started programs get.
  [[nodiscard]] sigset_t const& original_mask() const noexcept { return original_; }
  /// Returns the previous mask with `interrupt_signals` blocked, for a program that makes an `InterruptHandler`: they
  /// wait for it.
  [[nodiscard]] sigset_t mask_without_interrupts() const noexcept;

 private:
  sigset_t original_{};
  platform::Fd fd_;
};

}  // namespace crossrank::tools
