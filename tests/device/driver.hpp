// The CUDA driver as the tests of this folder use it: opened by path, every function found by name. The same tests run
// on the emulated driver and, by tests/device/run --real, on the real one.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"

namespace device_test {

inline bool real() { return std::getenv("CROSSRANK_REAL_DEVICE") != nullptr; }

/// Opens the library that the environment variable names, or the one that the build names.
inline void* open_library(char const* variable, char const* built) {
  char const* const path = std::getenv(variable);
  void* const opened = ::dlopen(path != nullptr ? path : built, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) ADD_FAILURE() << ::dlerror();
  return opened;
}

/// Calls the exported function `name` with these arguments. If the library does not export it,
/// fails the test and returns `missing`.
template <class Result, class... Arguments>
Result call(void* library, Result missing, char const* name, Arguments... arguments) {
  auto* const function = reinterpret_cast<Result (*)(Arguments...)>(::dlsym(library, name));
  if (function == nullptr) ADD_FAILURE() << name << " is missing";
  return function != nullptr ? function(arguments...) : missing;
}

inline void* driver() {
  static void* const library = open_library("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA);
  return library;
}

/// Calls a function of the driver.
template <class... Arguments>
CUresult cu(char const* name, Arguments... arguments) {
  return call(driver(), CUDA_ERROR_NOT_FOUND, name, arguments...);
}

/// A function of the emulator; null on the real driver.
template <class Function>
Function* emulated(char const* name) {
  return reinterpret_cast<Function*>(::dlsym(driver(), name));
}

inline unsigned long long count(char const* name) {
  return emulated<unsigned long long(char const*)>("emulated_count")(name);
}
inline unsigned long long reports() { return emulated<unsigned long long()>("emulated_report_count")(); }
inline void forget_reports() { emulated<void()>("emulated_reset_reports")(); }

/// Runs a test of this program in a process of its own and returns its exit status.
inline int run_other(char const* filter) {
  pid_t const child = ::fork();
  if (child == 0) {
    std::string const argument = std::string("--gtest_filter=") + filter;
    ::execl("/proc/self/exe", "driver_test", argument.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

/// A test with the primary context of the first device current.
class Driver : public testing::Test {
 protected:
  void SetUp() override {
    if (!real()) forget_reports();
    ASSERT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuDevicePrimaryCtxRetain", &context, CUdevice{0}), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuCtxSetCurrent", context), CUDA_SUCCESS);
  }
  void TearDown() override {
    cu("cuCtxSetCurrent", context);
    EXPECT_EQ(cu("cuDevicePrimaryCtxRelease_v2", CUdevice{0}), CUDA_SUCCESS);
    cu("cuCtxSetCurrent", CUcontext{});
    if (!real()) {
      EXPECT_EQ(emulated<unsigned long long(char const*)>("emulated_live")(nullptr), 0U);
      EXPECT_EQ(reports(), 0U);
    }
  }

  CUdeviceptr allocate(std::size_t size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu("cuMemAlloc_v2", &address, size), CUDA_SUCCESS);
    return address;
  }
  void free(CUdeviceptr address) { EXPECT_EQ(cu("cuMemFree_v2", address), CUDA_SUCCESS); }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cu("cuStreamCreate", &made, flags), CUDA_SUCCESS);
    return made;
  }
  void destroy(CUstream made) { EXPECT_EQ(cu("cuStreamDestroy_v2", made), CUDA_SUCCESS); }
  CUevent event() {
    CUevent made = nullptr;
    EXPECT_EQ(cu("cuEventCreate", &made, unsigned{CU_EVENT_DISABLE_TIMING}), CUDA_SUCCESS);
    return made;
  }

  CUcontext context = nullptr;
};

/// Pinned host memory of ints.
struct Pinned {
  explicit Pinned(std::size_t size) : count(size) {
    void* memory = nullptr;
    EXPECT_EQ(cu("cuMemHostAlloc", &memory, size * sizeof(int), 0U), CUDA_SUCCESS);
    data = static_cast<int*>(memory);
  }
  ~Pinned() { EXPECT_EQ(cu("cuMemFreeHost", static_cast<void*>(data)), CUDA_SUCCESS); }
  Pinned(Pinned const&) = delete;
  Pinned& operator=(Pinned const&) = delete;
  std::size_t bytes() const { return count * sizeof(int); }

  int* data = nullptr;
  std::size_t count;
};

}  // namespace device_test
