// Tests the environment variables of the emulator. Each case runs one test below in a process of its own, with the
// variables set.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/driver.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"

namespace device_test {
namespace {

struct Setting {
  char const* name;
  char const* value;
};

/// Runs the part `name` with the settings; returns the exit status.
int run_with(std::vector<Setting> const& settings, char const* name) {
  for (auto const& setting : settings) ::setenv(setting.name, setting.value, 1);
  ::setenv("DEVICE_TEST_PART", "1", 1);
  int const status = run_other((std::string("ConfigurationPart.") + name).c_str());
  ::unsetenv("DEVICE_TEST_PART");
  for (auto const& setting : settings) ::unsetenv(setting.name);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ConfigurationPart : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("DEVICE_TEST_PART") == nullptr) GTEST_SKIP() << "started by other tests";
  }
  void use_first_device() {
    ASSERT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cu("cuDevicePrimaryCtxRetain", &context, CUdevice{0}), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuCtxSetCurrent", context), CUDA_SUCCESS);
  }
};

TEST_F(ConfigurationPart, finds_no_device) { EXPECT_EQ(cu("cuInit", 0U), CUDA_ERROR_NO_DEVICE); }

// "CUDA C++ Programming Guide", CUDA Environment Variables: an empty CUDA_VISIBLE_DEVICES hides all devices.
TEST(Configuration, hides_all_devices) { EXPECT_EQ(run_with({{"CUDA_VISIBLE_DEVICES", ""}}, "finds_no_device"), 0); }

TEST(Configuration, has_no_devices) {
  if (real()) GTEST_SKIP() << "only the emulated driver can be told so";
  EXPECT_EQ(run_with({{"EMULATED_GPU_COUNT", "0"}}, "finds_no_device"), 0);
}

TEST_F(ConfigurationPart, sees_devices_three_and_one) {
  ASSERT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
  int count = 0;
  ASSERT_EQ(cu("cuDeviceGetCount", &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  CUuuid first{};
  ASSERT_EQ(cu("cuDeviceGetUuid_v2", &first, CUdevice{0}), CUDA_SUCCESS);
  EXPECT_EQ(first.bytes[15], 3);
}

// The same: a list of indices sets the order, and the first wrong entry ends it.
TEST(Configuration, orders_visible_devices) {
  if (real()) GTEST_SKIP() << "needs four devices whose identity is known";
  EXPECT_EQ(run_with({{"EMULATED_GPU_COUNT", "4"}, {"CUDA_VISIBLE_DEVICES", "3,1,9,0"}}, "sees_devices_three_and_one"),
            0);
}

TEST_F(ConfigurationPart, has_a_megabyte) {
  use_first_device();
  CUdeviceptr address = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &address, std::size_t{1} << 20), CUDA_SUCCESS);
  CUdeviceptr more = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &more, std::size_t{1}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu("cuMemFree_v2", address), CUDA_SUCCESS);
}

TEST(Configuration, limits_memory) {
  if (real()) GTEST_SKIP() << "a real device has the memory that it has";
  EXPECT_EQ(run_with({{"EMULATED_GPU_MEMORY", "1048576"}}, "has_a_megabyte"), 0);
}

TEST_F(ConfigurationPart, fails_at_the_second_stream) {
  use_first_device();
  CUstream stream = nullptr;
  ASSERT_EQ(cu("cuStreamCreate", &stream, 0U), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuStreamDestroy_v2", stream), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuStreamCreate", &stream, 0U), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(Configuration, injects_faults) {
  if (real()) GTEST_SKIP() << "only the emulated driver can be told so";
  EXPECT_EQ(run_with({{"EMULATED_GPU_FAIL", "cuStreamCreate:2:2"}}, "fails_at_the_second_stream"), 0);
}

TEST_F(ConfigurationPart, leaks) {
  use_first_device();
  CUdeviceptr address = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &address, std::size_t{64}), CUDA_SUCCESS);
}

TEST(Configuration, counts_leaks_at_exit) {
  if (real()) GTEST_SKIP() << "a real driver does not count";
  EXPECT_EQ(run_with({{"EMULATED_GPU_EXIT_CODE", "86"}}, "leaks"), 86);
  EXPECT_EQ(run_with({{"EMULATED_GPU_EXIT_CODE", "86"}, {"EMULATED_GPU_KEPT", "allocation:1,pool"}}, "leaks"), 0);
  EXPECT_EQ(run_with({{"EMULATED_GPU_EXIT_CODE", "86"}, {"EMULATED_GPU_KEPT", "allocation:0,event"}}, "leaks"), 86);
}

TEST_F(ConfigurationPart, has_no_peers) {
  ASSERT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
  int can = -1;
  EXPECT_EQ(cu("cuDeviceCanAccessPeer", &can, CUdevice{0}, CUdevice{1}), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cu("cuDeviceCanAccessPeer", &can, CUdevice{0}, CUdevice{2}), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
}

TEST(Configuration, says_which_devices_are_peers) {
  if (real()) GTEST_SKIP() << "a real machine has the peers that it has";
  EXPECT_EQ(run_with({{"EMULATED_GPU_COUNT", "4"}, {"EMULATED_GPU_PEERS", "0-2,1-3"}}, "has_no_peers"), 0);
}

TEST_F(ConfigurationPart, launches_two_kernels_ahead) {
  use_first_device();
  static std::atomic<int> ended{0};
  emulated<void(char const*, EmulatedKernel, std::size_t const*, std::size_t)>("emulated_register_kernel")(
      "slow",
      [](EmulatedLaunch const*, void**) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
      },
      nullptr, 0);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 8.0")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "slow"), CUDA_SUCCESS);
  for (int launched = 1; launched <= 20; ++launched) {
    ASSERT_EQ(cu("cuLaunchKernel", function, 1U, 1U, 1U, 1U, 1U, 1U, 0U, CUstream{}, static_cast<void**>(nullptr),
                 static_cast<void**>(nullptr)),
              CUDA_SUCCESS);
    EXPECT_GE(ended, launched - 2);
  }
  EXPECT_GT(count("full_launch_queue"), 0U);
  EXPECT_EQ(cu("cuStreamSynchronize", CUstream{}), CUDA_SUCCESS);
}

TEST(Configuration, limits_the_launch_queue) {
  if (real()) GTEST_SKIP() << "a real driver has the launch queue that it has";
  EXPECT_EQ(run_with({{"EMULATED_GPU_LAUNCH_QUEUE", "2"}}, "launches_two_kernels_ahead"), 0);
}

}  // namespace
}  // namespace device_test
