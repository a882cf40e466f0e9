// Copies of strided runs, compared with a loop over all their bytes.
#include "workspace/checkpoint/source/strided_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/tensor.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/source/state_dict_source.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns a random copy of runs that do not overlap, often one of runs without gaps.
StridedCopy random_copy(std::mt19937& random) {
  auto const upto = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random); };
  StridedCopy copy;
  copy.from.count = 1 + upto(8);
  copy.from.run_bytes = upto(12);
  copy.from.first_byte = upto(5);
  copy.from.stride_bytes = copy.from.run_bytes + (upto(1) == 0 ? 0 : upto(6));
  copy.to_first = upto(5);
  copy.to_stride = copy.from.run_bytes + (upto(1) == 0 ? 0 : upto(6));
  return copy;
}

TEST(StridedCopy, reads_each_window_as_a_loop_over_its_bytes_does) {
  auto const seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t most = 256;
  std::vector<std::uint8_t> input(most);
  for (std::size_t i = 0; i < most; ++i) input[i] = static_cast<std::uint8_t>(i + 1);
  StateDictSource const source("memory", {{"w", Tensor::of(input, {static_cast<std::int64_t>(most)})}});
  for (int round = 0; round < 2'000; ++round) {
    auto copy = random_copy(random);
    std::vector<std::uint8_t> whole(most);
    for (std::uint64_t run = 0; run < copy.from.count; ++run) {
      for (std::uint64_t byte = 0; byte < copy.from.run_bytes; ++byte)
        whole[copy.to(run) + byte] = input[copy.from.start(run) + byte];
    }
    if (round % 2 == 0) copy.merge_adjacent();
    auto const begin = std::uniform_int_distribution<std::size_t>(0, most)(random);
    auto const size = std::uniform_int_distribution<std::size_t>(0, most - begin)(random);
    std::vector<std::uint8_t> const expected(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                             whole.begin() + static_cast<std::ptrdiff_t>(begin + size));
    std::vector<std::uint8_t> got(size);
    auto const filled = read_strided_runs(source, 0, copy, begin, std::as_writable_bytes(std::span(got)));
    ASSERT_EQ(got, expected) << round;
    ASSERT_EQ(filled, size - as_size(std::ranges::count(expected, 0))) << round;
    std::uint64_t visited = 0;
    for_each_input_range(copy, begin, size, [&](std::uint64_t first, std::uint64_t bytes) {
      for (auto at = first; at < first + bytes; ++at) EXPECT_EQ(std::ranges::count(expected, input[at]), 1) << round;
      visited += bytes;
    });
    ASSERT_EQ(visited, filled) << round;
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
