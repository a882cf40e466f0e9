// A machine without the NVIDIA driver: each use of a GPU is one clear error, and the rest works.
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

}  // namespace
}  // namespace crossrank
