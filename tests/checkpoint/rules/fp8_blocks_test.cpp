#include "workspace/checkpoint/rules/scales/fp8_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/quantization/block_rescale.hpp"

namespace crossrank::checkpoint::fp8_blocks_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::int64_t block = 4;

/// A matrix of F8 values with the scales of its blocks.
struct Quantized {
  Tensor weight{};
  Tensor scale{};
  [[nodiscard]] double number(std::int64_t row, std::int64_t column) const {
    auto const columns = weight.shape()[1];
    auto const code = std::to_integer<std::uint16_t>(weight.bytes()[as_size(row * columns + column)]);
    return static_cast<double>(decode_small_float(Dtype::f8_e4m3, code)) * static_cast<double>(scale_at(row, column));
  }
  [[nodiscard]] float scale_at(std::int64_t row, std::int64_t column) const {
    return scale.as<float>()[as_size(row / block * scale.shape()[1] + column / block)];
  }
};

Quantized random_matrix(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  Quantized made{Tensor::empty({rows, columns}, Dtype::f8_e4m3), {}};
  for (auto& byte : made.weight.mutable_bytes()) {
    auto code = static_cast<std::uint8_t>(random() & 0xffU);
    if ((code & 0x7fU) == 0x7fU) code = 0;  // NaN
    byte = static_cast<std::byte>(code);
  }
  std::vector<float> scales;
  auto const up = [](std::int64_t length) { return (length + block - 1) / block; };
  for (auto left = up(rows) * up(columns); left > 0; --left)
    scales.push_back(0.001F * static_cast<float>(1 + random() % 4000));
  made.scale = Tensor::of<float>(scales, {up(rows), up(columns)});
  return made;
}

constexpr char const* up_proj = "model.layers.0.mlp.up_proj";
constexpr char const* down_proj = "model.layers.0.mlp.down_proj";
constexpr char const* k_proj = "model.layers.0.self_attn.k_proj";
constexpr char const* experts = "model.layers.0.mlp.experts.down_proj";
constexpr char const* fused = "model.layers.0.mlp.gate_up_proj";

class Fp8Blocks : public testing::Test {
 protected:
  /// Writes the shards of a feed-forward layer with a total width of `ffn`.
  void put(std::string const& layer, std::vector<Quantized> const& shards, std::int64_t ffn) {
    auto const folder = root_.path() / "shards";
    fs::remove_all(folder);
    fs::create_directories(folder);
    // Models that store the parts separately would get an unfused layer.
    Json const config = {{"model_type", layer == fused ? "phi3" : "llama"},
                         {"hidden_size", 8},
                         {"intermediate_size", ffn},
                         {"num_local_experts", 2},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"head_dim", 6},
                         {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {block, block}}}}};
    std::ofstream(folder / "config.json") << config;
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      StateDict weights;
      weights.insert_or_assign(layer + ".weight", shards[rank].weight);
      weights.insert_or_assign(layer + ".weight_scale_inv", shards[rank].scale);
      save_safetensors(folder / ("rank" + std::to_string(rank) + ".safetensors"), weights);
    }
  }
  [[nodiscard]] Quantized merge(std::string const& layer, PlanOptions const& options) const {
    auto const world = connect({.backend = "fake"});
    (void)consolidate(world, MergePlan::make(world, root_.path() / "shards", options), root_.path() / "out");
    auto const merged = load_safetensors(root_.path() / "out" / "model.safetensors");
    return {merged.at(layer + ".weight"), merged.at(layer + ".weight_scale_inv")};
  }
  /// Expects a number of a shard in the result, within the rounding of E4M3 under the result's scale.
  static void expect_near(Quantized const& shard, Quantized const& whole, std::int64_t row, std::int64_t column,
                          std::int64_t whole_row, std::int64_t whole_column) {
    auto const wanted = shard.number(row, column);
    auto const got = whole.number(whole_row, whole_column);
    auto const common = static_cast<double>(whole.scale_at(whole_row, whole_column));
    EXPECT_LE(std::abs(got - wanted), std::max(std::abs(wanted) / 16, common / 1024) * 1.0001)
        << row << ", " << column << " to " << whole_row << ", " << whole_column;
    EXPECT_GE(whole.scale_at(whole_row, whole_column), shard.scale_at(row, column));
  }
  test::TemporaryDirectory root_{};
};

TEST_F(Fp8Blocks, are_recomputed_when_the_output_split_crosses_them) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<std::int64_t> const heights{6, 3, 9};
  std::vector<Quantized> shards;
  for (auto const height : heights) shards.push_back(random_matrix(height, 8, random));
  put(up_proj, shards, 18);

  auto const whole = merge(up_proj, {.policy = ScalePolicy::requantize});

  ASSERT_EQ(whole.weight.shape(), Shape({18, 8}));
  ASSERT_EQ(whole.scale.shape(), Shape({5, 2}));
  std::int64_t before = 0;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    for (std::int64_t row = 0; row < heights[rank]; ++row) {
      for (std::int64_t column = 0; column < 8; ++column)
        expect_near(shards[rank], whole, row, column, before + row, column);
    }
    before += heights[rank];
  }
}

TEST_F(Fp8Blocks, are_recomputed_when_the_input_split_crosses_them) {
  std::mt19937 random(5);
  std::vector<Quantized> shards{random_matrix(8, 6, random), random_matrix(8, 6, random)};
  put(down_proj, shards, 12);

  auto const whole = merge(down_proj, {.policy = ScalePolicy::requantize});

  ASSERT_EQ(whole.scale.shape(), Shape({2, 3}));
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    for (std::int64_t row = 0; row < 8; ++row) {
      for (std::int64_t column = 0; column < 6; ++column)
        expect_near(shards[as_size(rank)], whole, row, column, row, rank * 6 + column);
    }
  }
}

TEST_F(Fp8Blocks, are_merged_in_fused_parts) {
  std::mt19937 random(6);
  // Each shard has 3 gates and 3 ups.
  std::vector<Quantized> shards{random_matrix(6, 8, random), random_matrix(6, 8, random)};
  put(fused, shards, 6);

  auto const whole = merge(fused, {.policy = ScalePolicy::requantize});

  for (std::int64_t rank = 0; rank < 2; ++rank) {
    for (std::int64_t row = 0; row < 6; ++row) {
      auto const part = row / 3;
      for (std::int64_t column = 0; column < 8; ++column)
        expect_near(shards[as_size(rank)], whole, row, column, part * 6 + rank * 3 + row % 3, column);
    }
  }
}

TEST_F(Fp8Blocks, stay_unchanged_when_scales_agree) {
  std::mt19937 random(7);
  std::vector<Quantized> shards{random_matrix(6, 8, random), random_matrix(6, 8, random)};
  for (auto& shard : shards) shard.scale = Tensor::of<float>(std::vector<float>(4, 0.5F), {2, 2});
  put(up_proj, shards, 12);

  auto const whole = merge(up_proj, {.policy = ScalePolicy::requantize});

  auto const expected = concat(std::vector{shards[0].weight, shards[1].weight}, {.dim = 0});
  EXPECT_TRUE(std::ranges::equal(whole.weight.bytes(), expected.bytes()));
  EXPECT_THAT(whole.scale.as<float>(), testing::Each(0.5F));
}

TEST_F(Fp8Blocks, are_merged_once_for_shared_heads) {
  std::mt19937 random(12);
  // Two heads of 6 rows on four ranks.
  auto const a = random_matrix(6, 8, random);
  auto const b = random_matrix(6, 8, random);
  put(k_proj, {a, a, b, b}, 12);

  auto const whole = merge(k_proj, {.policy = ScalePolicy::requantize});

  ASSERT_EQ(whole.weight.shape(), Shape({12, 8}));
  for (std::int64_t row = 0; row < 12; ++row) {
    for (std::int64_t column = 0; column < 8; ++column)
      expect_near(row < 6 ? a : b, whole, row % 6, column, row, column);
  }
  auto other = a;
  other.scale = Tensor::of<float>(std::vector<float>(4, 0.5F), {2, 2});
  put(k_proj, {a, other, b, b}, 12);
  fs::remove_all(root_.path() / "out");
  EXPECT_THROW((void)merge(k_proj, {.policy = ScalePolicy::requantize}), FormatError);
}

/// Stacks matrices.
Quantized stack(std::vector<Quantized> const& each) {
  auto const join = [&](auto member) {
    std::vector<Tensor> parts;
    for (auto const& one : each) {
      auto const& tensor = one.*member;
      parts.push_back(tensor.reshape({1, tensor.shape()[0], tensor.shape()[1]}));
    }
    return concat(parts, {.dim = 0});
  };
  return {join(&Quantized::weight), join(&Quantized::scale)};
}

TEST_F(Fp8Blocks, are_merged_per_expert_in_stacks) {
  std::mt19937 random(13);
  std::vector<std::vector<Quantized>> by_rank;
  std::vector<Quantized> shards;
  for (int rank = 0; rank < 2; ++rank) {
    by_rank.push_back({random_matrix(8, 6, random), random_matrix(8, 6, random)});
    shards.push_back(stack(by_rank.back()));
  }
  put(experts, shards, 12);

  auto const whole = merge(experts, {.policy = ScalePolicy::requantize});

  ASSERT_EQ(whole.weight.shape(), Shape({2, 8, 12}));
  ASSERT_EQ(whole.scale.shape(), Shape({2, 2, 3}));
  for (std::size_t expert = 0; expert < 2; ++expert) {
    auto const at = static_cast<std::int64_t>(expert);
    Quantized const one{slice(whole.weight, {.dim = 0}, at, 1).reshape({8, 12}),
                        slice(whole.scale, {.dim = 0}, at, 1).reshape({2, 3})};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::int64_t i = 0; i < 48; ++i)
        expect_near(by_rank[rank][expert], one, i / 6, i % 6, i / 6, static_cast<std::int64_t>(rank) * 6 + i % 6);
    }
  }
}

TEST_F(Fp8Blocks, are_merged_by_the_exact_policy_when_scales_agree) {
  std::mt19937 random(14);
  std::vector<Quantized> shards{random_matrix(6, 8, random), random_matrix(6, 8, random)};
  // Rows 4 and 5 of the first shard share a block with rows 0 and 1 of the second one, whose blocks have other
  // boundaries.
  for (auto& shard : shards) shard.scale = Tensor::of<float>(std::vector<float>{0.5F, 0.25F, 0.5F, 0.25F}, {2, 2});
  put(up_proj, shards, 12);

  auto const whole = merge(up_proj, {});

  auto const expected = concat(std::vector{shards[0].weight, shards[1].weight}, {.dim = 0});
  EXPECT_TRUE(std::ranges::equal(whole.weight.bytes(), expected.bytes()));
  EXPECT_THAT(whole.scale.as<float>(), testing::ElementsAre(0.5F, 0.25F, 0.5F, 0.25F, 0.5F, 0.25F));
}

TEST_F(Fp8Blocks, are_rejected_by_the_exact_policy_with_a_hint) {
  std::mt19937 random(8);
  put(up_proj, {random_matrix(6, 8, random), random_matrix(6, 8, random)}, 12);
  try {
    (void)merge(up_proj, {});
    FAIL();
  } catch (FormatError const& e) {
    EXPECT_THAT(e.info().hint, HasSubstr("`policy` requantize"));
  }
}

TEST_F(Fp8Blocks, are_rejected_when_scales_are_nan) {
  std::mt19937 random(9);
  std::vector<Quantized> shards{random_matrix(6, 8, random), random_matrix(6, 8, random)};
  shards[1].scale = Tensor::of<float>(std::vector<float>(4, NAN), {2, 2});
  put(up_proj, shards, 12);
  EXPECT_THROW((void)merge(up_proj, {.policy = ScalePolicy::requantize}), FormatError);
}

TEST_F(Fp8Blocks, are_merged_bit_for_bit_when_no_shard_boundary_splits_them) {
  std::mt19937 random(10);
  std::vector<Quantized> const shards{random_matrix(8, 8, random), random_matrix(5, 8, random)};
  put(up_proj, shards, 13);
  auto const whole = merge(up_proj, {.policy = ScalePolicy::requantize});
  auto const expected = concat(std::vector{shards[0].weight, shards[1].weight}, {.dim = 0});
  EXPECT_TRUE(std::ranges::equal(whole.weight.bytes(), expected.bytes()));
}

TEST(BlockRescale, changes_a_range_like_the_whole_shard) {
  std::mt19937 random(11);
  auto const made = random_matrix(10, 11, random);
  std::vector<float> const scales(made.scale.as<float>().begin(), made.scale.as<float>().end());
  for (int const axis : {0, 1}) {
    ShardBlocks const shard{{.rows = 10, .columns = 11, .block_rows = block, .block_columns = block, .scales = scales},
                            axis,
                            {{0, 3, 2}, {3, axis == 0 ? 7 : 8, 9}}};
    auto whole =
        std::make_shared<BlockGrid>(BlockGrid{.rows = 20, .columns = 20, .block_rows = block, .block_columns = block});
    merge_scales(*whole, {&shard, 1});
    BlockRescale const rescale(Dtype::f8_e4m3, shard, whole);
    std::vector<std::byte> all(made.weight.bytes().begin(), made.weight.bytes().end());
    rescale.apply(0, all);
    for (std::size_t begin = 0; begin < all.size(); begin += 7) {
      auto const end = std::min(begin + 19, all.size());
      std::vector<std::byte> some(made.weight.bytes().begin() + static_cast<std::ptrdiff_t>(begin),
                                  made.weight.bytes().begin() + static_cast<std::ptrdiff_t>(end));
      rescale.apply(begin, some);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

}  // namespace
}  // namespace crossrank::checkpoint::fp8_blocks_test
