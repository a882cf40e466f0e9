#pragma once
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

#include "lib/platform/files/directory.hpp"
#include "workspace/nfs/state_file.hpp"

namespace crossrank::test {

/// Returns a small state whose values depend on `seed`: several dtypes, an empty tensor and an undefined one.
inline RankState sample_state(int seed) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), static_cast<float>(seed));
  RankState state;
  state.config = Json{{"seed", seed}, {"name", "layer"}, {"nothing", nullptr}, {"list", {1, 2.5, "three"}}};
  state.weights.insert_or_assign("weight", Tensor::of(std::span<float const>(values), {4, 6}));
  state.weights.insert_or_assign("scale", Tensor::scalar(static_cast<double>(seed) / 3));
  state.weights.insert_or_assign("empty", Tensor::empty({0, 3}, Dtype::i64));
  state.weights.insert_or_assign("absent", Tensor{});
  state.weights.insert_or_assign("step", Tensor::scalar(std::int64_t{seed} << 33));
  return state;
}

/// Writes a state file as a killed process leaves it: published, but locked by nobody.
inline void leave_state(std::filesystem::path const& folder, workspace::StateFileName const& file, int seed = 0) {
  auto const state = sample_state(seed);
  static_cast<void>(
      workspace::write_state_file(platform::Directory::open(folder, "test"), file, state.config, state.weights));
}

/// Expects the same config, the same names in the same order, and the same bytes.
inline void expect_same(RankState const& got, RankState const& expected) {
  EXPECT_EQ(got.config, expected.config);
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  auto other = expected.weights.begin();
  for (auto const& [name, tensor] : got.weights) {
    EXPECT_EQ(name, other->first);
    auto const& wanted = other->second;
    ++other;
    ASSERT_EQ(tensor.defined(), wanted.defined()) << name;
    if (!tensor.defined()) continue;
    EXPECT_EQ(tensor.dtype(), wanted.dtype()) << name;
    EXPECT_EQ(tensor.shape(), wanted.shape()) << name;
    auto const a = tensor.bytes();
    auto const b = wanted.bytes();
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
  }
}

}  // namespace crossrank::test
