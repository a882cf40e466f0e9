// Ranks whose scales differ: an error that lists them, or new values within the stated bound.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::ScalePolicy;
using test::TemporaryDirectory;
using testing::Contains;
using testing::HasSubstr;
using testing::SizeIs;

constexpr std::int64_t rows = 8;
constexpr std::int64_t columns = 48;  // columns of one rank
std::string const weight = "model.layers.0.mlp.down_proj.weight";
std::string const scale = weight + "_scale";

/// Two FP8 shards of one layer, split along the inputs, each with its own scale.
class ScalesDiffer : public testing::Test {
 protected:
  ScalesDiffer() {
    std::mt19937 random(11);
    fs::create_directories(in());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto codes = Tensor::empty({rows, columns}, Dtype::f8_e4m3);
      for (auto& code : codes.mutable_bytes()) {
        // 0x7f and 0xff are NaN.
        code = static_cast<std::byte>((random() % 127) | (random() % 2 << 7U));
      }
      StateDict mine{{weight, codes}, {scale, Tensor::scalar(scales_[rank])}};
      mine.insert_or_assign("model.layers.0.mlp.down_proj.input_scale", Tensor::scalar(scales_[rank]));
      save_safetensors(in() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
      shards_.push_back(mine);
    }
    std::ofstream(in() / "config.json") << Json{
        {"num_hidden_layers", 1}, {"hidden_size", rows}, {"intermediate_size", 2 * columns}};
  }

  [[nodiscard]] fs::path in() const { return folder_.path() / "in"; }
  [[nodiscard]] checkpoint::MergePlan plan(ScalePolicy policy) const {
    return checkpoint::MergePlan::make(world_, in(), {.policy = policy});
  }
  static float number(Tensor const& codes, std::int64_t at) {
    return decode_small_float(Dtype::f8_e4m3, std::to_integer<std::uint16_t>(codes.bytes()[as_size(at)]));
  }

  TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  std::array<float, 2> scales_{0.75F, 0.5F};
  std::vector<StateDict> shards_{};
};

TEST_F(ScalesDiffer, throws_with_tensors_and_values) {
  try {
    (void)checkpoint::consolidate(world_, plan(ScalePolicy::exact), folder_.path() / "out");
    FAIL() << "the scales differ";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().details, Contains(HasSubstr(scale)));
    EXPECT_THAT(error.info().details, Contains(testing::AllOf(HasSubstr("0.75"), HasSubstr("0.5"))));
    EXPECT_THAT(error.info().hint, HasSubstr("`policy`"));
  }
  EXPECT_FALSE(fs::exists(folder_.path() / "out"));
}

TEST_F(ScalesDiffer, names_the_rank_whose_scale_is_not_finite) {
  shards_[1].insert_or_assign(scale, Tensor::scalar(std::numeric_limits<float>::infinity()));
  fs::remove(in() / "rank1.safetensors");
  save_safetensors(in() / "rank1.safetensors", shards_[1]);
  try {
    (void)checkpoint::consolidate(world_, plan(ScalePolicy::rescale), folder_.path() / "out");
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().got, HasSubstr("inf"));
    EXPECT_EQ(error.info().failed_ranks, std::vector{1});
  }
}

TEST_F(ScalesDiffer, uses_the_larger_scale_and_stays_within_the_bound) {
  auto const merge = plan(ScalePolicy::rescale);
  ASSERT_THAT(merge.requantized(), SizeIs(1));
  EXPECT_EQ(merge.requantized().front().tensor, weight);
  EXPECT_THAT(merge.requantized().front().bound, HasSubstr("1/16"));
  EXPECT_THAT(merge.explain(weight), HasSubstr("requantized"));
  EXPECT_THAT(merge.explain(weight), HasSubstr(R"("kind":"requantize","axis":1)"));
  EXPECT_NE(merge.hash(), plan(ScalePolicy::exact).hash());

  (void)checkpoint::consolidate(world_, merge, folder_.path() / "out");

  auto const merged = load_safetensors(folder_.path() / "out" / "model.safetensors");
  EXPECT_EQ(merged.at(scale).item<float>(), 0.75F);
  EXPECT_EQ(merged.at("model.layers.0.mlp.down_proj.input_scale").item<float>(), 0.75F);
  auto const& codes = merged.at(weight);
  ASSERT_EQ(codes.shape(), (Shape{rows, 2 * columns}));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < 2 * columns; ++column) {
      auto const rank = as_size(column / columns);
      auto const before = number(shards_[rank].at(weight), row * columns + column % columns) * scales_[rank];
      auto const after = number(codes, row * 2 * columns + column) * 0.75F;
      EXPECT_LE(std::abs(after - before), 1.0001F * std::max(std::abs(before) / 16.0F, 0.75F / 1024.0F))
          << row << " " << column;
      if (rank == 0) {
        EXPECT_EQ(after, before);
      }
    }
  }
}

TEST_F(ScalesDiffer, gives_the_same_bytes_for_any_slices_and_ranges) {
  (void)checkpoint::consolidate(world_, plan(ScalePolicy::requantize), folder_.path() / "one");
  // Split for four ranks, so that every row of the merged tensor is read in parts.
  (void)checkpoint::split(world_, plan(ScalePolicy::requantize), folder_.path() / "four", {.tp = 4});
  (void)checkpoint::consolidate(world_, checkpoint::MergePlan::make(world_, folder_.path() / "four"),
                                folder_.path() / "again");
  EXPECT_EQ(test::difference(test::read_checkpoint(folder_.path() / "one", true),
                             test::read_checkpoint(folder_.path() / "again", true)),
            "");
}

/// A row-parallel layer with a scale per output.
struct LayerWithScales {
  std::string weight{};
  std::int64_t experts = 0;  ///< 0: not stacked
  bool transposed = false;   ///< [in, out] in each expert
  Json config{};
};

class ScalesPerOutput : public testing::TestWithParam<LayerWithScales> {};

// Each row of each rank keeps its own scale, whatever the width of the ranks.
TEST_P(ScalesPerOutput, of_uneven_shards_stay_within_the_bound) {
  auto const& layer = GetParam();
  TemporaryDirectory const folder;
  auto const in = folder.path() / "in";
  fs::create_directories(in);
  std::mt19937 random(12);
  std::array<std::int64_t, 2> const widths{48, 16};
  auto const outputs = std::max<std::int64_t>(layer.experts, 1) * rows;
  auto const with_width = [&](std::int64_t width) {
    if (layer.experts == 0) return Shape{rows, width};
    return layer.transposed ? Shape{layer.experts, width, rows} : Shape{layer.experts, rows, width};
  };
  std::array<std::vector<float>, 2> scales;
  std::vector<Tensor> shards;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    auto codes = Tensor::empty(with_width(widths.at(rank)), Dtype::f8_e4m3);
    for (auto& code : codes.mutable_bytes()) code = static_cast<std::byte>((random() % 127) | (random() % 2 << 7U));
    for (std::int64_t output = 0; output < outputs; ++output)
      scales.at(rank).push_back(0.25F * static_cast<float>(rank == 0 ? output + 1 : outputs - output));
    save_safetensors(
        in / ("rank" + std::to_string(rank) + ".safetensors"),
        {{layer.weight, codes}, {layer.weight + "_scale", Tensor::of<float>(scales.at(rank), with_width(1))}});
    shards.push_back(codes);
  }
  std::ofstream(in / "config.json") << layer.config;
  auto const world = connect({.backend = "fake"});

  (void)checkpoint::consolidate(world, checkpoint::MergePlan::make(world, in, {.policy = ScalePolicy::rescale}),
                                folder.path() / "out");

  auto const merged = load_safetensors(folder.path() / "out" / "model.safetensors");
  auto const number = [&](Tensor const& codes, std::int64_t output, std::int64_t column) {
    auto const width = codes.numel() / outputs;
    auto const at =
        layer.transposed ? output / rows * rows * width + column * rows + output % rows : output * width + column;
    return decode_small_float(Dtype::f8_e4m3, std::to_integer<std::uint16_t>(codes.bytes()[as_size(at)]));
  };
  for (std::int64_t output = 0; output < outputs; ++output) {
    auto const at = as_size(output);
    auto const common = std::max(scales[0][at], scales[1][at]);
    ASSERT_EQ(merged.at(layer.weight + "_scale").as<float>()[at], common);
    for (std::int64_t column = 0; column < widths[0] + widths[1]; ++column) {
      std::size_t const rank = column < widths[0] ? 0 : 1;
      auto const before = number(shards[rank], output, column - (rank == 0 ? 0 : widths[0])) * scales.at(rank)[at];
      auto const after = number(merged.at(layer.weight), output, column) * common;
      EXPECT_LE(std::abs(after - before), 1.0001F * std::max(std::abs(before) / 16.0F, common / 1024.0F))
          << output << " " << column;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ScalesPerOutput,
    testing::Values(
        LayerWithScales{weight, 0, false, {{"num_hidden_layers", 1}, {"hidden_size", rows}, {"intermediate_size", 64}}},
        LayerWithScales{"model.layers.0.mlp.experts.down_proj.weight",
                        2,
                        false,
                        {{"model_type", "qwen3_moe"},
                         {"num_hidden_layers", 1},
                         {"hidden_size", rows},
                         {"num_experts", 2},
                         {"moe_intermediate_size", 64}}},
        LayerWithScales{"model.layers.0.feed_forward.experts.down_proj.weight",
                        2,
                        true,
                        {{"model_type", "llama4_text"},
                         {"num_hidden_layers", 1},
                         {"hidden_size", rows},
                         {"num_local_experts", 2},
                         {"intermediate_size", 64}}}),
    [](auto const& layer) {
      return layer.index == 0 ? "matrix" : layer.param.transposed ? "transposed_stack" : "stacked_experts";
    });

// Stored values are relative to the zero points, so scaling a stored value would change its meaning.
TEST(ScalesWithZeroPoints, always_throw_when_they_differ) {
  TemporaryDirectory const folder;
  std::string const layer = "model.layers.0.mlp.down_proj.";
  for (int rank = 0; rank < 2; ++rank) {
    StateDict mine{{layer + "weight", Tensor::zeros({8, 16}, Dtype::i8)},
                   {layer + "weight_scale", Tensor::of<float>(std::vector<float>(8, rank == 0 ? 0.5F : 0.75F), {8, 1})},
                   {layer + "weight_zero_point", Tensor::zeros({8, 1}, Dtype::i8)}};
    mine.at(layer + "weight").mutable_bytes()[0] = static_cast<std::byte>(rank + 1);
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"), mine);
  }
  std::ofstream(folder.path() / "config.json")
      << Json{{"num_hidden_layers", 1}, {"hidden_size", 8}, {"intermediate_size", 32}};
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, folder.path(), {.policy = ScalePolicy::rescale});

  EXPECT_THROW((void)checkpoint::consolidate(world, plan, folder.path() / "out"), FormatError);
}

}  // namespace
}  // namespace crossrank
