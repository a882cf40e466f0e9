#include "lib/platform/deadline.hpp"

#include "lib/platform/system.hpp"

namespace crossrank::platform {

Deadline::Deadline(std::chrono::nanoseconds timeout, std::chrono::nanoseconds idle) noexcept
    : timeout_(timeout), idle_(idle), last_(system().now()) {}

void Deadline::progress() noexcept {
  idle_ = std::chrono::nanoseconds(0);
  last_ = system().now();
}

void Deadline::tick() noexcept {
  auto const now = system().now();
  idle_ += std::clamp(now - last_, std::chrono::nanoseconds(0), 2 * slice);
  last_ = now;
}

}  // namespace crossrank::platform
