// `weight_shape` of compressed-tensors is the shape of the shard, or of the whole layer on every rank.
#include "workspace/checkpoint/rules/scales/weight_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"

namespace crossrank::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string const up = "model.layers.0.mlp.up_proj";
std::string const down = "model.layers.0.mlp.down_proj";

struct Quantized {
  char const* title;
  int bits;
  std::int64_t group;  ///< group size; 0: one scale per output
  bool symmetric;
};

Json quantization(Quantized const& format) {
  Json weights{{"num_bits", format.bits}};
  if (format.group > 0) weights["group_size"] = format.group;
  return {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", {{"weights", weights}}}}}};
}

std::vector<std::byte> shape_bytes(std::int64_t out, std::int64_t in) {
  WholeTensor tensor{"", Dtype::i64, {2}, std::vector<std::byte>(16)};
  set_shape(tensor, out, in);
  return tensor.bytes;
}

/// Adds a layer with shards [out, in] to both ranks, with `recorded` as its `weight_shape`.
void add_layer(SampleSet& samples, std::string const& module, Quantized const& format, Shape const& shard,
               std::vector<Shape> const& recorded) {
  auto const words = 32 / format.bits;
  auto const groups = format.group > 0 ? shard[1] / format.group : 1;
  for (int rank = 0; rank < static_cast<int>(recorded.size()); ++rank) {
    auto& source = samples.at(rank);
    source.add(module + ".weight_packed", Dtype::i32, {shard[0], (shard[1] + words - 1) / words});
    source.add(module + ".weight_scale", Dtype::bf16, {shard[0], groups});
    if (!format.symmetric) source.add(module + ".weight_zero_point", Dtype::i32, {shard[0] / words, groups});
    auto const& lengths = at_rank(recorded, rank);
    source.add(module + ".weight_shape", Dtype::i64, {2}, shape_bytes(lengths[0], lengths[1]));
  }
}

std::vector<std::int64_t> merged_shape(SampleSet& samples, std::string const& name) {
  auto const rule_set = RuleSet::make(samples.set());
  auto const model =
      std::make_shared<MergeLayout const>(lay_out_merge(samples.set(), rules_of(rule_set, samples.set())));
  auto const source = std::make_shared<MergedSource const>(model);
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    if (source->tensors()[i].name == name) return read_integers({source, i});
  }
  return {};
}

class WeightShapes : public testing::TestWithParam<Quantized> {};

TEST_P(WeightShapes, keep_the_shape_of_the_whole_layer) {
  SampleSet samples(2, feed_forward_config());
  samples.set().quantization = quantization(GetParam());
  add_layer(samples, up, GetParam(), {256, 256}, {{512, 256}, {512, 256}});
  add_layer(samples, down, GetParam(), {256, 256}, {{256, 512}, {256, 512}});
  EXPECT_THAT(merged_shape(samples, up + ".weight_shape"), ElementsAre(512, 256));
  EXPECT_THAT(merged_shape(samples, down + ".weight_shape"), ElementsAre(256, 512));
}

TEST_P(WeightShapes, add_up_over_shards) {
  SampleSet samples(2, feed_forward_config());
  samples.set().quantization = quantization(GetParam());
  add_layer(samples, up, GetParam(), {256, 256}, {{256, 256}, {256, 256}});
  add_layer(samples, down, GetParam(), {256, 256}, {{256, 256}, {256, 256}});
  EXPECT_THAT(merged_shape(samples, up + ".weight_shape"), ElementsAre(512, 256));
  EXPECT_THAT(merged_shape(samples, down + ".weight_shape"), ElementsAre(256, 512));
}

TEST_P(WeightShapes, are_rejected_when_they_match_neither_shard_nor_layer) {
  SampleSet samples(2, feed_forward_config());
  samples.set().quantization = quantization(GetParam());
  add_layer(samples, up, GetParam(), {256, 256}, {{512, 256}, {256, 256}});
  try {
    (void)merged_shape(samples, up + ".weight_shape");
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().expected, "[256, 256] or [512, 256]");
    EXPECT_THAT(error.failed_ranks(), ElementsAre(1));
  }
}

INSTANTIATE_TEST_SUITE_P(All, WeightShapes,
                         testing::Values(Quantized{"W4A16", 4, 64, true}, Quantized{"W4A16_ASYM", 4, 64, false},
                                         Quantized{"W8A16", 8, 0, true}),
                         [](auto const& tested) { return tested.param.title; });

TEST(WeightShape, is_that_of_the_layers_own_config_group) {
  Quantized const four{"W4A16", 4, 64, true};
  Quantized const eight{"W8A16", 8, 0, true};
  SampleSet samples(2, feed_forward_config());
  samples.set().quantization = {{"quant_method", "compressed-tensors"},
                                {"config_groups",
                                 {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 64}}}}},
                                  {"group_1", {{"weights", {{"num_bits", 8}, {"strategy", "channel"}}}}},
                                  {"group_2", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}}}};
  add_layer(samples, up, four, {256, 256}, {{256, 256}, {256, 256}});
  add_layer(samples, down, eight, {256, 256}, {{256, 256}, {256, 256}});
  EXPECT_THAT(merged_shape(samples, up + ".weight_shape"), ElementsAre(512, 256));
  EXPECT_THAT(merged_shape(samples, down + ".weight_shape"), ElementsAre(256, 512));
}

TEST(WeightShape, counts_each_head_once_when_ranks_share_heads) {
  auto config = feed_forward_config();
  config["num_attention_heads"] = 8;
  config["num_key_value_heads"] = 1;
  config["head_dim"] = 32;
  Quantized const format{"W4A16", 4, 64, true};
  for (auto const& recorded : {Shape{32, 256}}) {
    SampleSet samples(2, config);
    samples.set().quantization = quantization(format);
    add_layer(samples, "model.layers.0.self_attn.k_proj", format, {32, 256}, {recorded, recorded});
    EXPECT_THAT(merged_shape(samples, "model.layers.0.self_attn.k_proj.weight_shape"), ElementsAre(32, 256));
  }
}

TEST(WeightShape, loses_the_padding_of_a_vocabulary) {
  auto config = feed_forward_config();
  config["vocab_size"] = 124;
  Quantized const format{"W4A16", 4, 64, true};
  for (auto const& recorded : {Shape{64, 256}, Shape{128, 256}, Shape{124, 256}}) {
    SampleSet samples(2, config);
    samples.set().quantization = quantization(format);
    add_layer(samples, "lm_head", format, {64, 256}, {recorded, recorded});
    EXPECT_THAT(merged_shape(samples, "lm_head.weight_shape"), ElementsAre(124, 256));
  }
}

TEST(WeightShape, must_match_the_packed_weight_of_a_whole_layer) {
  Quantized const format{"W4A16", 4, 64, true};
  auto const check = [&](Shape const& recorded) {
    SampleSet samples(1, feed_forward_config());
    samples.set().quantization = quantization(format);
    add_layer(samples, up, format, {512, 256}, {recorded});
    QuantizationHints const hints(samples.set().config, samples.set().quantization);
    return check_weight_shapes(samples.set().sources.front(), hints);
  };
  EXPECT_THAT(check({512, 256}), IsEmpty());
  EXPECT_THAT(check({512, 250}), IsEmpty());  // the last word is padded
  auto const defects = check({1024, 256});
  ASSERT_THAT(defects, SizeIs(1));
  EXPECT_EQ(defects.front().resource, up + ".weight_shape");
  EXPECT_THAT(defects.front().text, HasSubstr("expected [512, 256], got 1024, 256"));
}

}  // namespace
}  // namespace crossrank::checkpoint
