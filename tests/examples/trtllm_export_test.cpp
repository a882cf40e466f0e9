#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/safetensors.hpp>

#include "examples/fp8_codec.hpp"
#include "examples/trtllm_export/model.hpp"
#include "lib/core/as_size.hpp"
#include "tests/examples/run_example.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using trtllm_export::Sizes;

/// The model as a single process computes it, with the scales that `tp` ranks calibrated.
struct Reference {
  Sizes sizes{};
  int trained = 1;

  /// Returns the largest value of a scale over the training ranks `[first, first + count)`.
  [[nodiscard]] float scale(int layer, std::string const& name, int first, int count) const {
    float value = 0;
    for (int rank = first; rank < first + count; ++rank) {
      auto const state = trtllm_export::make_layer(sizes, layer, {rank, trained, 0, 1});
      value = std::max(value, state.weights.at(name).item<float>());
    }
    return value;
  }
  /// Returns the part of a weight that rank `out` of `ranks` gets.
  [[nodiscard]] Tensor part(int layer, std::string const& name, int out, int ranks) const {
    return trtllm_export::make_layer(sizes, layer, {out, ranks, 0, 1}).weights.at(name);
  }
};

std::vector<std::byte> quantized(Tensor const& weight, float scale) {
  std::vector<std::byte> out;
  for (float const value : weight.as<float>())
    out.push_back(std::byte{fp8::encode_e4m3(static_cast<double>(value) / static_cast<double>(scale))});
  return out;
}

class TrtllmExport : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  void expect_layer(StateDict const& rank, Reference const& reference, int layer, int out) const {
    auto const ranks = GetParam().second;
    int const merged = reference.trained / ranks;
    auto const prefix = "transformer.layers." + std::to_string(layer) + ".";
    for (std::string const name : {"attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"}) {
      auto const scale = reference.scale(layer, name + ".weights_scaling_factor", out * merged, merged);
      auto const& weight = rank.at(prefix + name + ".weight");
      EXPECT_EQ(weight.dtype(), Dtype::f8_e4m3);
      auto const part = reference.part(layer, name + ".weight", out, ranks);
      EXPECT_EQ(weight.shape(), part.shape()) << name;
      EXPECT_TRUE(std::ranges::equal(weight.bytes(), quantized(part, scale))) << prefix + name;
      EXPECT_THAT(rank.at(prefix + name + ".weights_scaling_factor").as<float>(), ElementsAre(scale));
      auto const activation = reference.scale(layer, name + ".activation_scaling_factor", out * merged, merged);
      EXPECT_THAT(rank.at(prefix + name + ".activation_scaling_factor").as<float>(), ElementsAre(activation));
    }
    expect_qkv(rank, reference, layer, out);
    auto const cache = reference.scale(layer, "attention.kv_cache_scaling_factor", out * merged, merged);
    EXPECT_THAT(rank.at(prefix + "attention.kv_cache_scaling_factor").as<float>(), ElementsAre(cache));
    auto const norm = reference.part(layer, "post_layernorm.weight", 0, 1);
    EXPECT_TRUE(std::ranges::equal(rank.at(prefix + "post_layernorm.weight").bytes(), norm.bytes()));
  }
  void expect_qkv(StateDict const& rank, Reference const& reference, int layer, int out) const {
    auto const ranks = GetParam().second;
    int const merged = reference.trained / ranks;
    float scale = 0;
    for (std::string const name : {"attention.q", "attention.k", "attention.v"})
      scale = std::max(scale, reference.scale(layer, name + ".weights_scaling_factor", out * merged, merged));
    std::vector<std::byte> all;
    for (std::string const name : {"attention.q", "attention.k", "attention.v"}) {
      auto const part = quantized(reference.part(layer, name + ".weight", out, ranks), scale);
      all.insert(all.end(), part.begin(), part.end());
    }
    auto const prefix = "transformer.layers." + std::to_string(layer) + ".attention.qkv";
    EXPECT_TRUE(std::ranges::equal(rank.at(prefix + ".weight").bytes(), all)) << prefix;
    EXPECT_THAT(rank.at(prefix + ".weights_scaling_factor").as<float>(), ElementsAre(scale));
  }
  TemporaryDirectory root_{};
};

TEST_P(TrtllmExport, writes_the_same_checkpoint_as_one_process) {
  auto const [processes, ranks] = GetParam();
  auto const out = root_.path() / "engine";
  Reference const reference{.trained = processes > 1 ? processes / 2 : 1};

  auto const end = run_example(processes, "trtllm_export", {out.string(), std::to_string(ranks)});

  ASSERT_EQ(end.exit_code, 0) << end.err;
  auto const config = Json::parse(contents(out / "config.json"));
  EXPECT_EQ(config.at("mapping").at("tp_size"), ranks);
  EXPECT_EQ(config.at("quantization").at("quant_algo"), "FP8");
  EXPECT_EQ(names_in(out).size(), as_size(ranks) + 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto const weights = load_safetensors(out / ("rank" + std::to_string(rank) + ".safetensors"));
    EXPECT_EQ(weights.size(), 3U + 18U * as_size(reference.sizes.layers));
    for (int layer = 0; layer < reference.sizes.layers; ++layer) expect_layer(weights, reference, layer, rank);
    auto const ends = trtllm_export::make_ends(reference.sizes, {rank, ranks, 0, 1});
    for (std::string const name : {"vocab_embedding.weight", "ln_f.weight"}) {
      EXPECT_TRUE(std::ranges::equal(weights.at("transformer." + name).bytes(), ends.weights.at(name).bytes())) << name;
    }
    EXPECT_TRUE(std::ranges::equal(weights.at("lm_head.weight").bytes(), ends.weights.at("lm_head.weight").bytes()));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrtllmExport,
                         testing::Values(std::pair(1, 1), std::pair(2, 1), std::pair(4, 1), std::pair(4, 2)),
                         [](auto const& each) {
                           return std::to_string(each.param.first) + "_to_" + std::to_string(each.param.second);
                         });

TEST(TrtllmExportUse, refuses_a_number_of_ranks_that_does_not_divide) {
  TemporaryDirectory const root;
  auto const end = run_example(2, "trtllm_export", {(root.path() / "engine").string(), "3"});
  EXPECT_NE(end.exit_code, 0);
  EXPECT_THAT(end.err, testing::HasSubstr("usage"));
}

TEST(ConsolidateExample, merges_the_given_shards) {
  auto const shards = fs::path(CROSSRANK_TEST_DATA) / "quantized" / "fp8";
  for (int const ranks : {1, 2}) {
    TemporaryDirectory const root;
    auto const out = root.path() / "merged";

    auto const end = run_example(ranks, "consolidate", {(shards / "tp2").string(), out.string()});

    ASSERT_EQ(end.exit_code, 0) << end.err;
    auto const merged = load_safetensors(out / "model.safetensors");
    auto const wanted = load_safetensors(shards / "full" / "model.safetensors");
    ASSERT_EQ(merged.size(), wanted.size());
    for (auto const& [name, tensor] : wanted)
      EXPECT_TRUE(std::ranges::equal(merged.at(name).bytes(), tensor.bytes())) << name;
  }
}

TEST(ConsolidateExample, reports_an_error_in_one_line) {
  TemporaryDirectory const root;
  auto const end = run_example(1, "consolidate", {(root.path() / "nothing").string(), (root.path() / "out").string()});
  EXPECT_NE(end.exit_code, 0);
  EXPECT_THAT(end.err, testing::HasSubstr("nothing"));
}

}  // namespace
}  // namespace crossrank::test
