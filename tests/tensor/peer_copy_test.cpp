#include <cstdlib>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>

#include "tests/support/emulated_driver.hpp"

/// Copies between two GPUs, in the order of the streams of both.
namespace crossrank::test {
namespace {

using testing::Each;

constexpr auto source_gpu = Device::cuda(0);
constexpr auto target_gpu = Device::cuda(1);
constexpr std::int64_t elements = 1'000;

/// The driver adds no delays, so that work that waits for nothing runs at once.
class PeerCopy : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("EMULATED_GPU_DELAY_US", "0", 1);
  }
  void TearDown() override { EXPECT_EQ(reports(), 0U); }
};

/// Returns a tensor that all streams may use.
Tensor filled_with(float value, Device device) {
  auto made = Tensor::of(std::vector<float>(elements, value), {elements}).to(device);
  current_stream(device).synchronize();
  return made;
}

std::vector<float> on_host(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const all = host.as<float>();
  return {all.begin(), all.end()};
}

/// Looks for a while whether a stream continues.
bool continues(Stream const& stream) {
  auto const now = stream.record();
  for (int look = 0; look < 1'000 && !now.query(); ++look) std::this_thread::yield();
  return now.query();
}

TEST_F(PeerCopy, takes_the_values_there_without_a_wait_of_the_host) {
  auto const here = filled_with(3, source_gpu);
  reset_calls();
  auto const there = here.to(target_gpu);
  EXPECT_EQ(calls("host_wait"), 0U);
  EXPECT_EQ(there.device(), target_gpu);
  EXPECT_THAT(on_host(there), Each(3));
}

TEST_F(PeerCopy, comes_after_the_work_of_the_source) {
  auto const one = filled_with(1, source_gpu);
  auto source = filled_with(0, source_gpu);
  auto target = filled_with(0, target_gpu);
  auto const stream = Stream::create(source_gpu);
  StreamGuard const guard(stream);
  HeldStream held(stream.native(), source_gpu.index);
  source.copy_from(one);
  target.copy_from(source);
  EXPECT_FALSE(continues(current_stream(target_gpu)));
  held.release();
  EXPECT_THAT(on_host(target), Each(1));
}

TEST_F(PeerCopy, comes_before_the_next_work_of_the_source) {
  auto const zero = filled_with(0, source_gpu);
  auto source = filled_with(1, source_gpu);
  auto target = filled_with(0, target_gpu);
  auto const stream = Stream::create(target_gpu);
  StreamGuard const guard(stream);
  HeldStream held(stream.native(), target_gpu.index);
  target.copy_from(source);
  source.copy_from(zero);
  EXPECT_FALSE(continues(current_stream(source_gpu)));
  held.release();
  EXPECT_THAT(on_host(target), Each(1));
}

}  // namespace
}  // namespace crossrank::test
