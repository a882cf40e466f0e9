#include "lib/tensor/copy_memory.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank {
namespace {

constexpr std::byte guard{0xa5};
constexpr std::size_t page = 4096;
constexpr std::size_t margin = 2 * page;

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Returns the index of the first byte of `buffer` at `distance` bytes after `from`, modulo a page.
std::size_t place_behind(std::vector<std::byte> const& buffer, std::byte const* from, std::size_t distance) {
  auto const base = reinterpret_cast<std::uintptr_t>(buffer.data());
  auto const wanted = reinterpret_cast<std::uintptr_t>(from) + distance;
  return (wanted - base) % page;
}

using Copy = void (*)(void* to, void const* from, std::size_t bytes) noexcept;

void expect_exact_copy(Copy copy, std::size_t count, std::size_t distance, std::size_t skew) {
  auto const source = random_bytes(count + skew);
  std::vector<std::byte> target(count + 2 * margin, guard);
  auto const* const from = source.data() + skew;
  auto const at = page + place_behind(target, from, distance);
  copy(target.data() + at, from, count);
  std::vector<std::byte> expected(target.size(), guard);
  std::copy_n(from, count, expected.begin() + static_cast<std::ptrdiff_t>(at));
  EXPECT_TRUE(target == expected) << count << " bytes, " << distance << " behind, skew " << skew;
}

TEST(CopyMemory, copies_every_byte_and_no_other) {
  for (std::size_t const count : {0U, 1U, 100U, 2047U, 2048U, 2049U, 4096U, 4097U, 10'000U, 70'001U}) {
    for (std::size_t const distance : {0U, 1U, 15U, 16U, 31U, 33U, 63U, 64U, 65U, 4080U, 4095U}) {
      for (std::size_t const skew : {0U, 1U, 40U}) expect_exact_copy(copy_memory, count, distance, skew);
    }
  }
}

TEST(CopyMemory, copies_by_vectors_from_and_to_every_address_of_a_line) {
  for (std::size_t distance = 0; distance < 64; ++distance) {
    expect_exact_copy(copy_by_vectors, rep_movsb_min_bytes, distance, distance % 7);
    expect_exact_copy(copy_by_vectors, 5003, distance, 63 - distance);
  }
}

TEST(CopyMemory, knows_the_distances_at_which_rep_movsb_is_slow) {
  alignas(64) static std::byte buffer[4 * page];
  auto* const from = buffer + page;
  for (std::size_t distance = 0; distance < page; ++distance) {
    bool const slow = distance >= 1 && distance <= 63;
    EXPECT_EQ(is_slow_rep_movsb(from + distance, from, page), slow) << distance;
    EXPECT_EQ(is_slow_rep_movsb(from + distance + page, from, page), slow) << distance;
    EXPECT_EQ(is_slow_rep_movsb(from + distance - page, from, page), slow) << distance;
  }
  EXPECT_TRUE(is_slow_rep_movsb(from + 16, from, rep_movsb_min_bytes));
  EXPECT_FALSE(is_slow_rep_movsb(from + 16, from, rep_movsb_min_bytes - 1)) << "too short for rep movsb";
}

TEST(MoveMemory, moves_overlapping_ranges) {
  constexpr std::size_t bytes = 5000;
  auto const original = random_bytes(3 * bytes);
  for (std::ptrdiff_t const distance : {-4999, -4096, -64, -16, -1, 0, 1, 16, 63, 64, 4096, 4097, 4999, 5000, -5000}) {
    auto buffer = original;
    move_memory(buffer.data() + bytes + distance, buffer.data() + bytes, bytes);
    auto expected = original;
    std::copy_n(original.begin() + bytes, bytes, expected.begin() + bytes + distance);
    EXPECT_TRUE(buffer == expected) << distance;
  }
}

}  // namespace
}  // namespace crossrank
