// Tensors while another library, such as PyTorch, captures a graph from the current stream, on the emulated driver.
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/tensor.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

using test::calls;
using test::live;
using test::thrown;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);
constexpr int any_error = 900;  // that is not sticky

class ForeignCapture : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1); }
  void TearDown() override { EXPECT_EQ(test::reports(), 0U); }

  static Tensor zeros(bool shareable = false) {
    return Tensor::zeros({1024}, Dtype::f32, MemoryOptions{.device = gpu, .shareable = shareable});
  }
  /// Drops what waits for streams. An object that has waited for a capture then waits for an event, and memory that
  /// is not of a pool for one more.
  static void drop_all(Stream const& stream) {
    for (int i = 0; i < 3; ++i) {
      stream.synchronize();
      cuda::trim(gpu);
    }
  }
};

TEST_F(ForeignCapture, refuses_work_and_stays_valid) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const source = zeros();
  auto out = zeros();
  auto const borrowed = Tensor::from_blob(out.data(), {1024}, Dtype::f32, gpu);
  auto& provider = spi::device_provider(Device::Kind::cuda);
  stream.synchronize();
  test::Capture capture(stream.native());
  EXPECT_THAT(thrown<UsageError>([&] { out.copy_from(source); }).info().hint, HasSubstr("cuda::Graph"));
  EXPECT_THROW(static_cast<void>(source.to(Device::cpu())), UsageError);
  EXPECT_THROW(static_cast<void>(Tensor::empty({4}, Dtype::f32, gpu)), UsageError);
  EXPECT_THROW(provider.fill(stream, out.data(), std::byte{1}, out.nbytes()), UsageError);
  EXPECT_THROW(borrowed.record_stream(stream), UsageError);
  EXPECT_TRUE(capture.end());
  out.copy_from(source);
  EXPECT_EQ(out.to(Device::cpu()).as<float>()[0], 0);
}

TEST_F(ForeignCapture, keeps_no_borrowed_tensor_for_ever) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const backing = zeros();
  auto out = zeros();
  stream.synchronize();
  int freed = 0;
  auto const borrowed = [&] {
    return Tensor::from_blob(backing.data(), {1024}, Dtype::f32, gpu, [&freed](void*) { ++freed; });
  };
  {
    test::Capture capture(stream.native());
    for (int i = 0; i < 2; ++i) EXPECT_THROW(out.copy_from(borrowed()), UsageError);
    EXPECT_TRUE(capture.end());
  }
  for (int i = 0; i < 3; ++i) out.copy_from(borrowed());
  drop_all(stream);
  EXPECT_EQ(freed, 5);
}

/// Memory of the pool, and memory of cuMemAlloc.
class DroppedInForeignCapture : public ForeignCapture, public testing::WithParamInterface<bool> {};

TEST_P(DroppedInForeignCapture, is_freed_after_the_capture_of_its_stream) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  std::optional tensor = zeros(GetParam());
  stream.synchronize();
  test::Capture capture(stream.native());
  tensor.reset();
  cuda::trim(gpu);
  EXPECT_EQ(live("allocation"), 1U);
  EXPECT_TRUE(capture.end());
  drop_all(stream);
  EXPECT_EQ(live("allocation"), 0U);
}

TEST_P(DroppedInForeignCapture, is_freed_after_the_capture_of_a_stream_that_has_used_it) {
  auto const home = Stream::create(gpu);
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(home);
  std::optional tensor = zeros(GetParam());
  home.synchronize();
  tensor->record_stream(stream);
  test::Capture capture(stream.native());
  tensor.reset();
  cuda::trim(gpu);
  EXPECT_FALSE(home.is_capturing()) << "the stream of the memory must not join the capture";
  EXPECT_EQ(live("allocation"), 1U);
  EXPECT_TRUE(capture.end());
  drop_all(stream);
  drop_all(home);
  EXPECT_EQ(live("allocation"), 0U);
}

INSTANTIATE_TEST_SUITE_P(Memory, DroppedInForeignCapture, testing::Bool());

TEST_F(ForeignCapture, ends_the_use_of_shared_memory_later) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto& provider = spi::device_provider(Device::Kind::cuda);
  auto const memory = zeros(true);
  auto const shared = provider.share(gpu, memory.data(), memory.nbytes());
  ASSERT_TRUE(shared);
  auto lease = std::make_shared<int>();
  std::weak_ptr<int> const used = lease;
  auto view = provider.open_shared(*shared, std::exchange(lease, nullptr));
  EXPECT_TRUE(view->used_on(stream));
  stream.synchronize();
  test::Capture capture(stream.native());
  view.reset();
  cuda::trim(gpu);
  EXPECT_FALSE(used.expired());
  EXPECT_TRUE(capture.end());
  drop_all(stream);
  EXPECT_TRUE(used.expired());
}

/// A thread may begin the capture just before the library records an event on the stream.
TEST_F(ForeignCapture, an_event_that_it_has_taken_does_not_hold_up_the_stream) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  std::optional first = zeros(true);
  std::optional second = zeros(true);
  stream.synchronize();
  {
    test::Capture const capture(stream.native());
    for (unsigned nth : {1U, 2U}) test::fail_call("cuStreamIsCapturing", nth, any_error);
    first.reset();
  }
  second.reset();
  drop_all(stream);
  EXPECT_EQ(live("allocation"), 0U);
  EXPECT_EQ(calls("cuMemFree_v2"), 2U);
}

}  // namespace
}  // namespace crossrank
