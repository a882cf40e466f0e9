// A machine without the NVIDIA driver, with an old one, or without a GPU: each use of a GPU is one clear error, and the
// rest works. Each case is a process of its own, because a process opens one driver.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {
namespace {

using testing::HasSubstr;

class NoDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1); }
};

TEST_F(NoDriver, says_what_was_tried_and_what_to_install) {
  try {
    (void)Tensor::empty({4}, Dtype::f32, Device::cuda(0));
    ADD_FAILURE() << "nothing was thrown";
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.report(), HasSubstr("CROSSRANK_CUDA_LIBRARY=/nowhere/libcuda.so.1"));
    EXPECT_THAT(error.info().hint, HasSubstr("install the NVIDIA driver"));
  }
  EXPECT_THROW((void)Tensor::empty({4}, Dtype::f32, MemoryOptions{.pinned = true}), UnavailableError);
  EXPECT_THROW(cuda::require_driver(), UnavailableError);
}

TEST_F(NoDriver, leaves_the_cpu_as_the_default_device) {
  EXPECT_EQ(cuda::device_count(), 0);
  EXPECT_EQ(default_device(), Device::cpu());
}

class OldDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("EMULATED_GPU_DRIVER_VERSION", "10020", 1);
  }
};

TEST_F(OldDriver, is_refused_with_its_version) {
  try {
    (void)Tensor::empty({4}, Dtype::f32, Device::cuda(0));
    ADD_FAILURE() << "nothing was thrown";
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.info().expected, HasSubstr("CUDA 11.0"));
    EXPECT_EQ(error.info().got, "CUDA 10.2");
    EXPECT_EQ(error.info().resource, CROSSRANK_TEST_CUDA);
    EXPECT_THAT(error.info().hint, HasSubstr("install a newer NVIDIA driver"));
  }
  EXPECT_THROW(cuda::require_driver(), UnavailableError);
  EXPECT_EQ(cuda::device_count(), 0);
  EXPECT_EQ(default_device(), Device::cpu());
}

class DriverWithoutGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("EMULATED_GPU_COUNT", "0", 1);
  }
};

TEST_F(DriverWithoutGpu, says_that_there_is_no_gpu) {
  try {
    (void)Tensor::empty({4}, Dtype::f32, Device::cuda(0));
    ADD_FAILURE() << "nothing was thrown";
  } catch (UnavailableError const& error) {
    EXPECT_EQ(error.info().got, "cuda:0");
    EXPECT_THAT(error.info().hint, HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
  try {
    cuda::require_driver();
    ADD_FAILURE() << "nothing was thrown";
  } catch (UnavailableError const& error) {
    EXPECT_THAT(error.info().system, HasSubstr("CUDA_ERROR_NO_DEVICE"));
    EXPECT_EQ(error.info().resource, CROSSRANK_TEST_CUDA);
  }
  EXPECT_THROW((void)Tensor::empty({4}, Dtype::f32, MemoryOptions{.pinned = true}), UnavailableError);
}

TEST_F(DriverWithoutGpu, leaves_the_cpu_as_the_default_device) {
  EXPECT_EQ(cuda::device_count(), 0);
  EXPECT_EQ(default_device(), Device::cpu());
  EXPECT_EQ(cuda::driver_info().path, CROSSRANK_TEST_CUDA);
}

}  // namespace
}  // namespace crossrank
