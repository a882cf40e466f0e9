// Conversions of dtypes on GPUs, on the emulated driver, which runs the source of the kernels as loops.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/tensor.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

using test::calls;
using test::thrown;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);

class DeviceConvert : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1); }
  void TearDown() override { EXPECT_EQ(test::reports(), 0U); }
};

std::vector<Dtype> const number_dtypes{
    Dtype::boolean, Dtype::u8,          Dtype::i8,          Dtype::f8_e5m2, Dtype::f8_e4m3, Dtype::f8_e8m0,
    Dtype::i16,     Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz, Dtype::u16,     Dtype::f16,     Dtype::bf16,
    Dtype::i32,     Dtype::u32,         Dtype::f32,         Dtype::f64,     Dtype::i64,     Dtype::u64};

/// Returns elements with random bits: numbers of all sizes, and NaN.
Tensor random_bits(std::int64_t count, Dtype dtype) {
  auto tensor = Tensor::empty({count}, dtype);
  std::mt19937 random(static_cast<unsigned>(dtype));
  for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random());
  return tensor;
}

std::vector<std::byte> bytes_of(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  return {host.bytes().begin(), host.bytes().end()};
}

std::vector<float> host_values(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  return {host.as<float>().begin(), host.as<float>().end()};
}

TEST_F(DeviceConvert, gives_the_bits_of_the_cpu_for_all_dtypes) {
  for (auto const from : number_dtypes) {
    auto const host = random_bits(2'000, from);
    auto const there = host.to(gpu);
    for (auto const to : number_dtypes)
      EXPECT_EQ(bytes_of(there.to(to)), bytes_of(host.to(to))) << name_of(from) << " to " << name_of(to);
  }
}

TEST_F(DeviceConvert, takes_one_kernel_and_neither_copies_nor_waits) {
  auto const there = Tensor::of<float>({1, 2, 3}, {3}).to(gpu);
  static_cast<void>(there.to(Dtype::f64));  // loads the kernels
  current_stream(gpu).synchronize();
  test::reset_calls();
  auto const half = there.to(Dtype::bf16);
  EXPECT_EQ(calls("cuLaunchKernel"), 1U);
  EXPECT_EQ(calls("copy"), 0U);
  EXPECT_EQ(calls("host_wait") + calls("polled_wait"), 0U);
  EXPECT_EQ(calls("cuModuleLoadData"), 0U);
  EXPECT_EQ(half.device(), gpu);
  EXPECT_THAT(host_values(half.to(Dtype::f32)), ElementsAre(1, 2, 3));
}

TEST_F(DeviceConvert, comes_in_the_order_of_the_current_stream) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const numbers = Tensor::of<float>({1, 2, 3, 4}, {4}).to(gpu);
  auto source = Tensor::zeros({4}, Dtype::f32, gpu);
  test::HeldStream held(stream.native());
  source.copy_from(numbers);
  auto const doubles = std::exchange(source, {}).to(Dtype::f64);  // the source ends before the kernel begins
  held.release();
  EXPECT_THAT(host_values(doubles.to(Dtype::f32)), ElementsAre(1, 2, 3, 4));
}

TEST_F(DeviceConvert, covers_each_element_of_a_long_tensor) {
  constexpr std::int64_t count = 65'536 * 256 + 3;  // more than the threads of a launch
  EXPECT_EQ(Tensor::empty({0}, Dtype::u8, gpu).to(Dtype::i8).numel(), 0);
  auto there = Tensor::empty({count}, Dtype::u8, gpu);
  spi::device_provider(Device::Kind::cuda).fill(current_stream(gpu), there.data(), std::byte{7}, there.nbytes());
  auto const host = there.to(Dtype::i16).to(Device::cpu());
  auto const all = host.as<std::int16_t>();
  EXPECT_EQ(std::count(all.begin(), all.end(), 7), count);
}

TEST_F(DeviceConvert, handles_elements_without_alignment) {
  auto const bytes = Tensor::empty({64}, Dtype::u8, gpu);
  auto odd = Tensor::from_blob(bytes.data() + 1, {4}, Dtype::f32, gpu);
  odd.copy_from(Tensor::of<float>({1, 2, 3, 4}, {4}));
  EXPECT_THAT(host_values(odd.to(Dtype::bf16).to(Dtype::f32)), ElementsAre(1, 2, 3, 4));
}

TEST_F(DeviceConvert, is_a_part_of_a_captured_graph) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto source = Tensor::of<float>({1, 2}, {2}).to(gpu);
  auto result = Tensor::zeros({2}, Dtype::f64, gpu);
  stream.synchronize();
  auto const graph = cuda::Graph::capture(stream, [&] { result.copy_from(source.to(Dtype::f64)); });
  EXPECT_THAT(host_values(result.to(Dtype::f32)), ElementsAre(0, 0));
  for (float const value : {5.0F, 6.0F}) {
    source.copy_from(Tensor::of<float>({value, 2}, {2}));
    graph.replay();
    EXPECT_THAT(host_values(result.to(Dtype::f32)), ElementsAre(value, 2));
  }
}

TEST_F(DeviceConvert, is_refused_while_another_library_captures) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const source = Tensor::zeros({4}, Dtype::f32, gpu);
  stream.synchronize();
  test::Capture capture(stream.native());
  EXPECT_THROW(static_cast<void>(source.to(Dtype::f64)), UsageError);
  auto& provider = spi::device_provider(Device::Kind::cuda);
  EXPECT_THROW(provider.convert(stream, {.to = source.data(), .from = source.data(), .elements = 1}), UsageError);
  EXPECT_THROW(provider.reduce(stream, {.to = source.data(), .inputs = source.data(), .elements = 1}), UsageError);
  EXPECT_TRUE(capture.end());
}

TEST_F(DeviceConvert, refuses_the_dtypes_that_the_cpu_refuses) {
  auto const packed = Tensor::zeros({4}, Dtype::f4, gpu);
  EXPECT_EQ(thrown<UsageError>([&] { static_cast<void>(packed.to(Dtype::f32)); }).info().got, "F4");
}

TEST_F(DeviceConvert, reports_a_launch_that_fails) {
  auto const source = Tensor::zeros({4}, Dtype::f32, gpu);
  static_cast<void>(source.to(Dtype::f64));
  test::fail_call("cuLaunchKernel", 1, 719);
  EXPECT_THAT(thrown<BackendError>([&] { static_cast<void>(source.to(Dtype::f64)); }).info().message,
              HasSubstr("cuLaunchKernel"));
}

/// A driver that does not load the kernels: the host converts, and one warning says so.
void expect_conversion_by_the_host(char const* reason) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) {
    if (event.level == LogLevel::warning) warnings.push_back(std::string(event.message));
  });
  auto const source = Tensor::of<float>({1.5F, -2}, {2}).to(gpu);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(host_values(source.to(Dtype::bf16).to(Dtype::f32)), ElementsAre(1.5F, -2));
  set_log_sink({});
  EXPECT_EQ(calls("cuLaunchKernel"), 0U) << reason;
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("kernels"))) << reason;
}

TEST_F(DeviceConvert, goes_through_the_host_on_a_gpu_that_is_too_old) {
  ::setenv("EMULATED_GPU_CAPABILITY", "35", 1);
  expect_conversion_by_the_host("the image is for later GPUs");
}

TEST_F(DeviceConvert, goes_through_the_host_when_the_driver_lacks_a_kernel) {
  static_cast<void>(cuda::device_count());
  test::fail_call("cuModuleGetFunction", 2, 500);
  expect_conversion_by_the_host("the second kernel is missing");
  EXPECT_EQ(calls("cuModuleUnload"), 1U);
}

TEST_F(DeviceConvert, by_the_host_cannot_be_captured) {
  ::setenv("EMULATED_GPU_CAPABILITY", "35", 1);
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const source = Tensor::zeros({2}, Dtype::f32, gpu);
  stream.synchronize();
  EXPECT_THAT(thrown<UsageError>([&] {
                static_cast<void>(cuda::Graph::capture(stream, [&] { static_cast<void>(source.to(Dtype::f64)); }));
              })
                  .info()
                  .hint,
              HasSubstr("capture"));
}

}  // namespace
}  // namespace crossrank
