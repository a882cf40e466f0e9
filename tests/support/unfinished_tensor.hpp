#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/emulated_driver.hpp"

/// Tensors whose values an emulated GPU has yet to write. A reader that does not wait for the GPU sees zeros.
namespace crossrank::test {

inline constexpr auto held_gpu = Device::cuda(0);
inline constexpr std::int64_t held_elements = (9 << 20) / 4 + 1;  // three pieces, the last one short
// A wait of the host first polls 200 times without a pause. More polls than that mean that the copy does not end.
inline constexpr unsigned long long looks_in_vain = 300;

inline std::vector<float> finished_values() {
  std::vector<float> values(as_size(held_elements));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

inline void expect_finished(Tensor const& tensor) {
  auto const got = tensor.as<float>();
  auto const wanted = finished_values();
  EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin(), wanted.end())) << "first value " << got[0];
}

/// Releases a stream once the host has waited for its GPU for a while, at the latest with the end of the result. A copy
/// of pageable memory waits inside the driver, which is wrong here.
[[nodiscard]] inline std::jthread release_waited_for(HeldStream& held) {
  reset_calls();
  return std::jthread([&held](std::stop_token const& ended) {
    while (!ended.stop_requested() && calls("cuEventQuery") < looks_in_vain && calls("pageable_copy") == 0)
      std::this_thread::yield();
    EXPECT_EQ(calls("pageable_copy"), 0U);
    held.release();
  });
}

/// Returns memory of the GPU that other processes can open.
inline Tensor shareable_tensor(std::vector<float> const& values) {
  auto tensor = Tensor::empty({held_elements}, Dtype::f32, {.device = held_gpu, .shareable = true});
  tensor.copy_from(Tensor::of(values, {held_elements}));
  return tensor;
}

inline std::vector<float> zeros() { return std::vector<float>(as_size(held_elements)); }

/// Calls `use` with a tensor whose values come behind a held stream. Releases the stream once the host has waited for
/// it for a while, or once `use` has returned without a wait: readers must have looked by then.
inline void with_unfinished_tensor(std::function<void(Tensor const&)> const& use) {
  auto const source = Tensor::of(finished_values(), {held_elements}).to(held_gpu);
  auto const tensor = shareable_tensor(zeros());
  current_stream(held_gpu).synchronize();
  auto const stream = Stream::create(held_gpu);
  StreamGuard const guard(stream);
  HeldStream held(stream.native());
  auto target = tensor;
  target.copy_from(source);
  auto const releaser = release_waited_for(held);
  use(tensor);
}

}  // namespace crossrank::test
