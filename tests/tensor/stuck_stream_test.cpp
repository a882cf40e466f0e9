// Copies through page-locked buffers of the process on a stream that is stuck, on the emulated driver. There,
// freeing page-locked memory waits for the streams, as with the real one.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/spi/wait_hook.hpp>
#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/transfer/tensor_mover.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank {
namespace {

constexpr auto gpu = Device::cuda(0);
constexpr std::int64_t several_pieces = 16 << 20;

class StuckStream : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("CROSSRANK_TIMEOUT", "300ms", 1);
  }
  void TearDown() override { EXPECT_EQ(test::reports(), 0U); }

  /// Runs `call` three times while the stream is stuck. Each run must end with a `TimeoutError`.
  static void expect_timeouts(Stream const& stream, std::function<void()> const& call) {
    test::HeldStream held(stream.native());
    auto runs = std::async(std::launch::async, [&] {
      StreamGuard const guard(stream);
      for (int run = 0; run < 3; ++run) EXPECT_THROW(call(), TimeoutError) << "run " << run;
    });
    EXPECT_EQ(runs.wait_for(test::scaled_timeout(std::chrono::seconds(3))), std::future_status::ready);
    held.release();
    runs.get();
  }
};

TEST_F(StuckStream, reads_through_buffers_end_in_time_again_and_again) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  StateDict const weights{{"w", Tensor::zeros({several_pieces}, Dtype::u8, gpu)}};
  test::TemporaryDirectory const folder;
  auto const file = folder.path() / "model.safetensors";
  expect_timeouts(stream, [&] { save_safetensors(file, weights); });
  stream.synchronize(test::step_timeout);
  save_safetensors(file, weights);
  EXPECT_EQ(load_safetensors(file).at("w").nbytes(), std::size_t{several_pieces});
  EXPECT_LE(test::live("host"), 2U) << "buffers are used again";
}

TEST_F(StuckStream, uploads_through_buffers_end_in_time_again_and_again) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto const weight = Tensor::zeros({several_pieces}, Dtype::u8);
  expect_timeouts(stream, [&] { static_cast<void>(TensorMover(gpu).move(weight)); });
  stream.synchronize(test::step_timeout);
  EXPECT_EQ(TensorMover(gpu).move(weight).nbytes(), std::size_t{several_pieces});
  EXPECT_LE(test::live("host"), 2U) << "buffers are used again";
}

std::chrono::nanoseconds interrupt() noexcept { return std::chrono::nanoseconds(-1); }

TEST_F(StuckStream, the_wait_hook_ends_a_wait) {
  auto const stream = Stream::create(gpu);
  test::HeldStream held(stream.native());
  auto const event = stream.record();
  spi::set_wait_hook(&interrupt);
  EXPECT_THROW(event.synchronize(std::chrono::minutes(1)), CancelledError);
  spi::set_wait_hook(nullptr);
  held.release();
  event.synchronize(test::step_timeout);
}

}  // namespace
}  // namespace crossrank
