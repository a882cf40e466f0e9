#pragma once
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace crossrank::test {

/// Allows this process a few MiB more of memory than it has, and restores the limit at the end.
class LittleMemory {
 public:
  LittleMemory() {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    auto limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + (rlim_t{8} << 20);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~LittleMemory() { ::setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(LittleMemory const&) = delete;
  LittleMemory& operator=(LittleMemory const&) = delete;

 private:
  rlimit before_{};
};

}  // namespace crossrank::test
