#include "workspace/checkpoint/plan/checks/check_model.hpp"

#include <gtest/gtest.h>

#include "tests/checkpoint/support/shard_samples.hpp"
#include "workspace/checkpoint/plan/checks/check_layers.hpp"

namespace crossrank::checkpoint {
namespace {

TEST(CheckScales, accept_blocks_of_layers_and_of_stacks) {
  SampleSource source("sample");
  source.add("model.layers.0.mlp.up_proj.weight_blocks", Dtype::u8, {64, 2, 16});
  source.add("model.layers.0.mlp.up_proj.weight_scales", Dtype::u8, {64, 2});
  source.add("model.layers.0.mlp.experts.down_proj_blocks", Dtype::u8, {4, 64, 2, 16});
  source.add("model.layers.0.mlp.experts.down_proj_scales", Dtype::u8, {4, 64, 2});
  EXPECT_TRUE(check_scales(source, Json::object(), Json::object()).empty());
}

TEST(CheckScales, name_a_layer_with_too_few_block_scales) {
  SampleSource source("sample");
  source.add("model.layers.0.mlp.up_proj.weight_blocks", Dtype::u8, {64, 2, 16});
  source.add("model.layers.0.mlp.up_proj.weight_scales", Dtype::u8, {64, 1});
  auto const defects = check_scales(source, Json::object(), Json::object());
  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects.front().resource, "model.layers.0.mlp.up_proj");
}

TEST(CheckScales, name_layers_with_scales_and_no_weight) {
  std::vector<std::string> names{"model.layers.0.mlp.act.scales", "model.layers.0.attn.q.codes",
                                 "model.layers.0.attn.q.weight_scale"};
  for (auto const* suffix : {"weight_scale", "weight_scale_2", "input_scale", "bias"})
    names.push_back("model.layers.0.mlp.up." + std::string(suffix));
  for (auto const* suffix : {"qweight", "scales", "qzeros"}) names.push_back("b.0.down." + std::string(suffix));
  names.emplace_back("model.layers.1.mlp.up.weight_scale");
  names.emplace_back("b.1.down.qzeros");

  auto const defects = check_scales_without_weights(names);

  ASSERT_EQ(defects.size(), 2U);
  EXPECT_EQ(defects[0].resource, "b.*.down");
  EXPECT_EQ(defects[0].text, "1 layer has a scale and no weight");
  EXPECT_EQ(defects[1].resource, "model.layers.*.mlp.up");
  EXPECT_EQ(defects[1].text, "2 layers have a scale and no weight");
}

/// Returns the names of `layers` layers with two matrices and a norm each.
std::vector<std::string> layer_names(int layers) {
  std::vector<std::string> names;
  for (int i = 0; i < layers; ++i) {
    for (auto const* name : {"mlp.up_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"})
      names.push_back("model.layers." + std::to_string(i) + "." + name);
  }
  return names;
}

TEST(CheckSiblings, report_a_tensor_that_only_one_layer_lacks) {
  auto names = layer_names(4);
  EXPECT_TRUE(check_siblings(names).empty());
  std::erase(names, "model.layers.2.mlp.down_proj.weight");
  auto const defects = check_siblings(names);
  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects.front().resource, "model.layers.2.mlp.down_proj.weight");
  EXPECT_NE(defects.front().text.find("3 others"), std::string::npos) << defects.front().text;
}

TEST(CheckSiblings, report_a_tensor_that_only_one_expert_lacks) {
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    for (auto const* name : {"w1", "w2", "w3"})
      names.push_back("model.layers.0.mlp.experts." + std::to_string(i) + "." + name + ".weight");
  }
  std::erase(names, "model.layers.0.mlp.experts.1.w3.weight");
  auto const defects = check_siblings(names);
  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects.front().resource, "model.layers.0.mlp.experts.1.w3.weight");
}

TEST(CheckSiblings, accept_layers_of_several_kinds_and_a_first_layer_without_a_tensor) {
  auto names = layer_names(5);
  // Another kind of layer in between, two shorter layers, and a first layer without a norm.
  for (auto& name : names) {
    if (name == "model.layers.1.mlp.up_proj.weight") name = "model.layers.1.mixer.in_proj.weight";
  }
  std::erase(names, "model.layers.2.mlp.down_proj.weight");
  std::erase(names, "model.layers.3.mlp.down_proj.weight");
  std::erase(names, "model.layers.0.input_layernorm.weight");
  EXPECT_TRUE(check_siblings(names).empty());
}

}  // namespace
}  // namespace crossrank::checkpoint
