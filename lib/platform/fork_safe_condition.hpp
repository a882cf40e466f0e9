#pragma once
#include <condition_variable>

#include <sys/types.h>
#include <unistd.h>

namespace crossrank::platform {

/// A condition variable that a forked child may destroy. The C library would wait there for the threads that slept on
/// it during the fork, although only the parent has them.
class ForkSafeCondition {
 public:
  ForkSafeCondition() : process_(::getpid()), condition_() {}
  ~ForkSafeCondition() {
    if (process_ == ::getpid()) condition_.~condition_variable();
  }
  ForkSafeCondition(ForkSafeCondition const&) = delete;
  ForkSafeCondition& operator=(ForkSafeCondition const&) = delete;

  [[nodiscard]] std::condition_variable* operator->() noexcept { return &condition_; }

 private:
  pid_t const process_;
  union {
    std::condition_variable condition_;
  };
};

}  // namespace crossrank::platform
