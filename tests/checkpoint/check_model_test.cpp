#include "workspace/checkpoint/check_model.hpp"

#include <gtest/gtest.h>

#include "tests/checkpoint/shard_samples.hpp"

namespace crossrank::checkpoint {
namespace {

TEST(CheckScales, take_blocks_of_one_layer_and_of_stacks_for_what_they_are) {
  SampleSource source("sample");
  source.add("model.layers.0.mlp.up_proj.weight_blocks", Dtype::u8, {64, 2, 16});
  source.add("model.layers.0.mlp.up_proj.weight_scales", Dtype::u8, {64, 2});
  source.add("model.layers.0.mlp.experts.down_proj_blocks", Dtype::u8, {4, 64, 2, 16});
  source.add("model.layers.0.mlp.experts.down_proj_scales", Dtype::u8, {4, 64, 2});
  EXPECT_TRUE(check_scales(source, Json::object(), Json::object()).empty());
}

TEST(CheckScales, name_the_layer_whose_blocks_have_too_few_scales) {
  SampleSource source("sample");
  source.add("model.layers.0.mlp.up_proj.weight_blocks", Dtype::u8, {64, 2, 16});
  source.add("model.layers.0.mlp.up_proj.weight_scales", Dtype::u8, {64, 1});
  auto const defects = check_scales(source, Json::object(), Json::object());
  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects.front().resource, "model.layers.0.mlp.up_proj");
}

}  // namespace
}  // namespace crossrank::checkpoint
