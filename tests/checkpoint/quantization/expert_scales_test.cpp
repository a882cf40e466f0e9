// Stacked experts with a scale each, on tensor-parallel and expert-parallel ranks.
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
#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/tensor/concat.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::expert_scales_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::ScalePolicy;
using testing::HasSubstr;

constexpr std::int64_t experts = 4;
constexpr std::int64_t outputs = 8;
constexpr std::int64_t inputs = 64;  // of one rank
constexpr std::int64_t block = 16;
constexpr std::int64_t ranks = 2;  // tensor-parallel
std::string const down = "model.layers.0.mlp.experts.down_proj";

/// The scales of one kind: for each tensor-parallel rank, those of all experts.
using Scales = std::vector<std::vector<float>>;

/// A row-parallel stack of NVFP4 experts. The ranks agree about the scales of the first two experts.
class ExpertScales : public testing::Test {
 protected:
  ExpertScales() {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      auto const later = static_cast<float>(rank);
      global_.push_back({0.5F, 2.0F, 1.0F + later, 4.0F - later});
      input_.push_back({1.0F + later, 2.0F, 3.0F - later, 4.0F});
      values_.push_back(random_tensor({experts, outputs, inputs / 2}, Dtype::u8, 0xffU));
      blocks_.push_back(random_tensor({experts, outputs, inputs / block}, Dtype::f8_e4m3, 0x77U));
    }
  }

  Tensor random_tensor(Shape const& shape, Dtype dtype, unsigned mask) {
    auto tensor = Tensor::empty(shape, dtype);
    for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random_() & mask);
    return tensor;
  }

  /// Writes the shards of `ep` expert-parallel ranks.
  void write(int ep) const {
    fs::create_directories(in());
    std::ofstream(in() / "config.json") << Json{{"model_type", "qwen3_moe"},
                                                {"num_hidden_layers", 1},
                                                {"hidden_size", outputs},
                                                {"num_experts", experts},
                                                {"moe_intermediate_size", ranks * inputs}};
    auto const own = experts / ep;
    for (std::size_t tp = 0; tp < ranks; ++tp) {
      for (int e = 0; e < ep; ++e) {
        auto const of_rank = [&](Tensor const& all) { return slice(all, {.dim = 0}, e * own, own); };
        auto const vector = [&](Scales const& scales) { return of_rank(Tensor::of<float>(scales[tp], {experts})); };
        save_safetensors(in() / ("tp" + std::to_string(tp) + "_ep" + std::to_string(e) + ".safetensors"),
                         {{down, of_rank(values_[tp])},
                          {down + "_weight_scale", of_rank(blocks_[tp])},
                          {down + "_weight_scale_2", vector(global_)},
                          {down + "_input_scale", vector(input_)}});
      }
    }
  }

  /// Returns the dequantized weights of one output of an expert.
  static std::vector<float> numbers(Tensor const& values, Tensor const& blocks, std::int64_t row, float global) {
    auto const width = values.shape()[2];
    std::vector<float> result(as_size(2 * width));
    decode_small_floats(Dtype::f4, values.bytes().subspan(as_size(row * width), result.size() / 2), result);
    for (std::size_t i = 0; i < result.size(); ++i) {
      auto const at = as_size(row * 2 * width / block) + i / block;
      result[i] *= global * decode_small_float(Dtype::f8_e4m3, std::to_integer<std::uint16_t>(blocks.bytes()[at]));
    }
    return result;
  }

  [[nodiscard]] fs::path in() const { return folder_.path() / "in"; }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  std::mt19937 random_{17};
  Scales global_{};
  Scales input_{};
  std::vector<Tensor> values_{};
  std::vector<Tensor> blocks_{};
};

class ExpertScalesWithPolicy : public ExpertScales, public testing::WithParamInterface<std::tuple<ScalePolicy, int>> {};

TEST_P(ExpertScalesWithPolicy, of_tensor_parallel_ranks_become_the_largest_of_each_expert) {
  auto const [policy, ep] = GetParam();
  write(ep);

  (void)checkpoint::consolidate(world_, checkpoint::MergePlan::make(world_, in(), {.policy = policy}),
                                folder_.path() / "out");

  auto const merged = load_safetensors(folder_.path() / "out" / "model.safetensors");
  EXPECT_THAT(merged.at(down + "_input_scale").as<float>(), testing::ElementsAre(2, 2, 3, 4));
  EXPECT_THAT(merged.at(down + "_weight_scale_2").as<float>(), testing::ElementsAre(0.5F, 2, 2, 4));
  auto const& values = merged.at(down);
  auto const& blocks = merged.at(down + "_weight_scale");
  ASSERT_EQ(values.shape(), (Shape{experts, outputs, ranks * inputs / 2}));
  for (std::int64_t row = 0; row < experts * outputs; ++row) {
    auto const expert = as_size(row / outputs);
    auto const common = merged.at(down + "_weight_scale_2").as<float>()[expert];
    auto const after = numbers(values, blocks, row, common);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto const before = numbers(values_[rank], blocks_[rank], row, global_[rank][expert]);
      for (std::size_t i = 0; i < before.size(); ++i) {
        auto const first = before.begin() + static_cast<std::ptrdiff_t>(i / block * block);
        float largest = 0;
        std::for_each(first, first + block, [&](float value) { largest = std::max(largest, std::abs(value)); });
        auto const change = std::abs(after[rank * before.size() + i] - before[i]);
        EXPECT_LE(change, std::max(largest / 5, common / 128) * 1.0001F) << "row " << row << ", input " << i;
        if (expert < 2) {
          EXPECT_EQ(change, 0) << "row " << row << ", input " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ExpertScalesWithPolicy,
                         testing::Combine(testing::Values(ScalePolicy::rescale, ScalePolicy::requantize),
                                          testing::Values(1, 2)),
                         [](auto const& given) {
                           return std::string(std::get<0>(given.param) == ScalePolicy::rescale ? "rescale"
                                                                                               : "requantize") +
                                  "_with_ep_" + std::to_string(std::get<1>(given.param));
                         });

TEST_F(ExpertScales, of_activations_are_the_same_when_merged_in_parts) {
  global_[1] = global_[0];
  write(2);
  auto const plan = checkpoint::MergePlan::make(world_, in());
  auto const file = folder_.path() / "plan.json";
  checkpoint::PartsPlan::make(plan, folder_.path() / "out").save(file);
  auto const parts = checkpoint::PartsPlan::load(file);

  (void)checkpoint::consolidate_part(parts, 0);
  (void)checkpoint::finish_parts(parts);

  auto const merged = load_safetensors(folder_.path() / "out" / "model.safetensors");
  EXPECT_THAT(merged.at(down + "_input_scale").as<float>(), testing::ElementsAre(2, 2, 3, 4));
}

/// Expert blocks along the first dimension of a matrix cannot be quantized again, but rescaled.
TEST(BlocksAcrossRows, are_rescaled_and_not_quantized_again) {
  test::TemporaryDirectory const folder;
  std::ofstream(folder.path() / "config.json") << Json{{"model_type", "llama4_text"},
                                                       {"num_hidden_layers", 1},
                                                       {"hidden_size", outputs},
                                                       {"num_local_experts", 2},
                                                       {"intermediate_size", 2 * inputs}};
  std::string const stack = "model.layers.0.feed_forward.experts.down_proj";
  for (int rank = 0; rank < 2; ++rank) {
    auto values = Tensor::zeros({2, inputs / 2, outputs}, Dtype::u8);
    values.mutable_bytes()[0] = static_cast<std::byte>(rank + 1);
    save_safetensors(folder.path() / ("rank" + std::to_string(rank) + ".safetensors"),
                     {{stack, values},
                      {stack + "_weight_scale", Tensor::zeros({2, inputs / block, outputs}, Dtype::f8_e4m3)},
                      {stack + "_weight_scale_2", Tensor::scalar(rank == 0 ? 1.0F : 2.0F)}});
  }
  auto const world = connect({.backend = "fake"});
  auto const plan = [&](ScalePolicy policy) {
    return checkpoint::MergePlan::make(world, folder.path(), {.policy = policy});
  };
  EXPECT_NO_THROW((void)plan(ScalePolicy::rescale));
  try {
    (void)plan(ScalePolicy::requantize);
    ADD_FAILURE() << "accepted";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().hint, HasSubstr("rescale"));
  }
}

}  // namespace
}  // namespace crossrank::expert_scales_test
