#include "lib/tensor/streaming_copy.hpp"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank {
namespace {

constexpr std::byte guard_byte{0xa5};
constexpr std::size_t guard_width = 64;

std::vector<std::byte> seeded_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random() & 0xffU);
  return bytes;
}

/// Copies `count` bytes between the given misalignments and checks each byte of the destination and around it.
void expect_exact_kernel(CopyKernel kernel, std::size_t count, std::size_t to_skew, std::size_t from_skew) {
  auto const source = seeded_bytes(count + from_skew, static_cast<std::uint32_t>(count));
  std::vector<std::byte> target(count + 2 * guard_width + to_skew + 64, guard_byte);
  auto const base = reinterpret_cast<std::uintptr_t>(target.data() + guard_width);
  std::byte* const to = target.data() + guard_width + (64 - base % 64) % 64 + to_skew;
  copy_with(kernel, to, source.data() + from_skew, count);
  std::vector<std::byte> expected(target.size(), guard_byte);
  if (count != 0) std::memcpy(expected.data() + (to - target.data()), source.data() + from_skew, count);
  EXPECT_TRUE(target == expected) << to_string(kernel) << ": " << count << " bytes, skews " << to_skew << " and "
                                  << from_skew;
}

class EachKernel : public ::testing::TestWithParam<CopyKernel> {
 protected:
  void SetUp() override {
    if (!has_kernel(GetParam())) GTEST_SKIP() << "this processor has no " << to_string(GetParam());
  }
};

TEST_P(EachKernel, copies_every_small_size) {
  for (std::size_t count = 0; count <= 300; ++count) expect_exact_kernel(GetParam(), count, 0, 0);
}

TEST_P(EachKernel, copies_from_and_to_odd_addresses) {
  for (std::size_t const to : {1U, 7U, 31U, 63U}) {
    for (std::size_t const from : {0U, 1U, 13U, 63U}) {
      for (std::size_t const count : {1U, 63U, 64U, 65U, 255U, 256U, 257U, 4096U, 70'001U}) {
        expect_exact_kernel(GetParam(), count, to, from);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Copy, EachKernel,
                         ::testing::Values(CopyKernel::standard, CopyKernel::sse2, CopyKernel::avx2,
                                           CopyKernel::avx512),
                         [](auto const& kernel) { return std::string(to_string(kernel.param)); });

TEST(CopyBytes, copies_under_each_hint) {
  auto const source = seeded_bytes(100'000, 7);
  for (auto const stores : {StoreMode::automatic, StoreMode::normal, StoreMode::streaming}) {
    std::vector<std::byte> target(source.size());
    copy_bytes(target.data(), source.data(), source.size(), {.stores = stores, .threshold = 4096});
    EXPECT_TRUE(target == source);
  }
}

TEST(CopyInterleaved, copies_every_segment_and_nothing_else) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto const below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  constexpr std::size_t capacity = 30'000;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> source(capacity);
    for (auto& byte : source) byte = static_cast<std::byte>(below(256));
    std::vector<std::vector<std::byte>> targets(1 + below(4), std::vector<std::byte>(capacity, std::byte{0x33}));
    auto expected = targets;
    std::vector<CopySegment> parts;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      auto const bytes = below(4) == 0 ? below(3) : below(capacity / 2);
      auto const to = below(capacity - bytes);
      auto const from = below(capacity - bytes);
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  expected[i].begin() + static_cast<std::ptrdiff_t>(to));
      parts.push_back({.to = targets[i].data() + to,
                       .from = source.data() + from,
                       .bytes = bytes,
                       .stores = below(2) == 0 ? StoreMode::normal : StoreMode::streaming});
    }
    copy_interleaved(parts);
    ASSERT_EQ(targets, expected) << "round " << round;
  }
  copy_interleaved({});
}

TEST(CopyBytes, accepts_null_for_zero_bytes) { EXPECT_NO_FATAL_FAILURE(copy_bytes(nullptr, nullptr, 0)); }

TEST(StreamingThreshold, shrinks_with_the_ranks_that_share_the_cache) {
  EXPECT_GE(streaming_threshold(1), std::size_t{128} << 10);
  EXPECT_LE(streaming_threshold(1), std::size_t{1} << 30) << "no core has that much cache";
  EXPECT_EQ(streaming_threshold(2), streaming_threshold(1) / 2);
  EXPECT_EQ(streaming_threshold(0), streaming_threshold(1));
}

TEST(StreamingKernel, is_supported_by_this_machine) { EXPECT_TRUE(has_kernel(streaming_kernel())); }

}  // namespace
}  // namespace crossrank
