#pragma once
#include <cstddef>

#include <pthread.h>

namespace crossrank::test {

/// Prevents new threads during its lifetime, by a default stack size that is larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 62U);
    refused_ = pthread_setattr_default_np(&huge) == 0;
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(NoThreads const&) = delete;
  NoThreads& operator=(NoThreads const&) = delete;
  [[nodiscard]] bool refused() const noexcept { return refused_; }

 private:
  pthread_attr_t before_{};
  bool refused_ = false;
};

}  // namespace crossrank::test
