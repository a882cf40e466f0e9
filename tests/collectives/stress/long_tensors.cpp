#include "tests/collectives/stress/long_tensors.hpp"
#include "lib/core/as_size.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>

#include <gtest/gtest.h>

namespace crossrank::test {
namespace {

constexpr std::size_t word_bytes = sizeof(std::uint64_t);
constexpr std::size_t half_bytes = (std::size_t{1} << 30) + word_bytes;
constexpr std::size_t whole_bytes = 2 * half_bytes;
constexpr std::size_t odd = (std::size_t{1} << 31) + 5;
constexpr std::uint64_t needed_gib = 14;

/// Returns eight values of a rank, small enough for the sum of two to fit a byte.
std::uint64_t word(std::uint64_t index, int rank) {
  auto const mixed = (index + 1) * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03U;
  return (mixed ^ (mixed >> 32U)) & 0x3F3F3F3F3F3F3F3FU;
}
std::uint64_t sum_of_words(std::uint64_t index) { return word(index, 0) + word(index, 1); }

/// Writes the values that `of` returns for each word. The last word may be incomplete.
template <class Of>
void fill(std::span<std::byte> bytes, Of of) {
  std::size_t at = 0;
  for (; bytes.size() - at >= word_bytes; at += word_bytes) {
    std::uint64_t const value = of(at / word_bytes);
    std::memcpy(bytes.data() + at, &value, word_bytes);
  }
  std::uint64_t const value = of(at / word_bytes);
  std::memcpy(bytes.data() + at, &value, bytes.size() - at);
}

/// Returns the offset of the first word with another value, or the number of bytes if all are as expected.
template <class Of>
std::size_t first_other(std::span<std::byte const> bytes, Of of) {
  std::size_t at = 0;
  for (; bytes.size() - at >= word_bytes; at += word_bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, word_bytes);
    if (value != of(at / word_bytes)) return at;
  }
  std::uint64_t const value = of(at / word_bytes);
  return std::memcmp(bytes.data() + at, &value, bytes.size() - at) == 0 ? bytes.size() : at;
}

auto values_of(int rank, std::size_t begin = 0) {
  return [rank, begin](std::uint64_t index) { return word(begin / word_bytes + index, rank); };
}

Tensor buffer(std::size_t bytes) { return Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8); }

/// Moves one tensor whose last word is incomplete.
void move_whole_tensors(Collective const& world, Tensor tensor) {
  auto const bytes = tensor.mutable_bytes();
  int const rank = world.rank();
  if (rank == 1) fill(bytes, values_of(1));
  world.broadcast(tensor, {.root = 1});
  EXPECT_EQ(first_other(bytes, values_of(1)), odd) << "broadcast";

  if (rank == 0) {
    fill(bytes, values_of(0));
    world.send(tensor, 1);
  } else {
    world.recv(tensor, 0);
    EXPECT_EQ(first_other(bytes, values_of(0)), odd) << "recv";
    fill(bytes, values_of(1));
  }
  world.all_reduce(tensor);
  EXPECT_EQ(first_other(bytes, sum_of_words), odd) << "all_reduce";
}

/// Moves tensors that are joined from the halves of the ranks, or split into them.
void move_halves(Collective const& world, Tensor tensor) {
  int const rank = world.rank();
  auto const begin = as_size(rank) * half_bytes;
  auto out = buffer(whole_bytes);
  {
    auto mine = buffer(half_bytes);
    fill(mine.mutable_bytes(), values_of(rank));
    world.all_gather(out, mine);
  }
  for (int from : {0, 1}) {
    auto const part = out.bytes().subspan(as_size(from) * half_bytes, half_bytes);
    EXPECT_EQ(first_other(part, values_of(from)), half_bytes) << "all_gather, of rank " << from;
  }

  fill(tensor.mutable_bytes(), values_of(rank));
  world.all_to_all(out, tensor);
  for (int from : {0, 1}) {
    auto const part = out.bytes().subspan(as_size(from) * half_bytes, half_bytes);
    EXPECT_EQ(first_other(part, values_of(from, begin)), half_bytes) << "all_to_all, of rank " << from;
  }

  auto reduced = out.narrow(0, 0, static_cast<std::int64_t>(half_bytes));
  world.reduce_scatter(reduced, tensor);
  auto const is_sum = [&](std::uint64_t index) { return sum_of_words(begin / word_bytes + index); };
  EXPECT_EQ(first_other(reduced.bytes(), is_sum), half_bytes) << "reduce_scatter";
}

}  // namespace

std::string no_memory_for_long_tensors() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    words >> name >> kib;
    if (name != "MemAvailable:") continue;
    if (kib >> 20U >= needed_gib) return {};
    return std::to_string(kib >> 20U) + " GiB of memory are free, and " + std::to_string(needed_gib) + " are needed";
  }
  return "cannot find out how much memory is free";
}

void move_long_tensors(Collective const& world) {
  ASSERT_EQ(world.world_size(), 2);
  move_whole_tensors(world, buffer(odd));
  move_halves(world, buffer(whole_bytes));
}

}  // namespace crossrank::test
