// Groups of packed INT4 layers: their ids on each rank, and their size if no config gives it.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"

namespace crossrank::checkpoint::group_size_test {
namespace {

using ::testing::HasSubstr;

std::string const down = "model.layers.0.mlp.down_proj";

std::vector<std::byte> ids(std::int32_t inputs, std::int32_t group, std::int32_t first, bool shuffled = false) {
  std::vector<std::byte> bytes(as_size(inputs) * 4);
  for (std::int32_t i = 0; i < inputs; ++i) {
    auto const id = first + (shuffled ? (i * 7) % inputs : i) / group;
    std::memcpy(bytes.data() + i * 4, &id, 4);
  }
  return bytes;
}

SampleSet gptq_ranks(std::int32_t second_first, bool shuffled) {
  SampleSet samples(2, feed_forward_config());
  samples.set().quantization = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}};
  samples.add(down + ".qweight", Dtype::i32, {32, 256}).add(down + ".scales", Dtype::f16, {4, 256});
  samples.at(0).add(down + ".g_idx", Dtype::i32, {256}, ids(256, 64, 0, shuffled));
  samples.at(1).add(down + ".g_idx", Dtype::i32, {256}, ids(256, 64, second_first, shuffled));
  return samples;
}

TEST(RuleGroupIds, are_offset_only_when_every_rank_starts_at_zero) {
  for (auto const& [first, add] : {std::pair(0, 4), std::pair(4, 0)}) {
    auto samples = gptq_ranks(first, false);
    auto const rule = RuleSet::make(samples.set()).rule_for(down + ".g_idx", samples.shards(down + ".g_idx"));
    EXPECT_EQ(concatenation_of(rule).add_per_rank, add) << rule.reason;
  }
}

TEST(RuleGroupIds, are_rejected_in_another_order) {
  auto samples = gptq_ranks(0, true);
  EXPECT_THROW((void)RuleSet::make(samples.set()).rule_for(down + ".g_idx", samples.shards(down + ".g_idx")),
               FormatError);
}

std::vector<std::byte> halves(std::size_t count, std::uint16_t code) {
  std::vector<std::byte> bytes(count * 2);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * 2, &code, 2);
  return bytes;
}

/// Makes GPTQ layers without a quantization config. Each rank has one row of scales for its 256 inputs.
SampleSet one_group_each(std::uint16_t second) {
  SampleSet samples(2, feed_forward_config());
  samples.add(down + ".qweight", Dtype::i32, {32, 256}).add(down + ".qzeros", Dtype::i32, {1, 32});
  samples.at(0).add(down + ".scales", Dtype::f16, {1, 256}, halves(256, 0x3c00));
  samples.at(1).add(down + ".scales", Dtype::f16, {1, 256}, halves(256, second));
  for (int rank = 0; rank < 2; ++rank) samples.at(rank).add(down + ".g_idx", Dtype::i32, {256}, ids(256, 256, 0));
  return samples;
}

TEST(RuleGroupSize, is_taken_from_another_layer_without_a_config) {
  auto samples = one_group_each(0x4000);
  // 512 inputs in two groups.
  samples.add("model.layers.0.other.qweight", Dtype::i32, {64, 256});
  samples.add("model.layers.0.other.scales", Dtype::f16, {2, 256});
  auto const rule_set = RuleSet::make(samples.set());
  for (std::string const tensor : {".scales", ".qzeros", ".qweight"}) {
    auto const rule = rule_set.rule_for(down + tensor, samples.shards(down + tensor));
    EXPECT_EQ(concatenation_of(rule).axis, 0) << tensor;
  }
  EXPECT_EQ(concatenation_of(rule_set.rule_for(down + ".g_idx", samples.shards(down + ".g_idx"))).add_per_rank, 1);
}

TEST(RuleGroupSize, is_the_whole_input_when_all_ranks_have_one_scale) {
  auto samples = one_group_each(0x3c00);
  auto const rule_set = RuleSet::make(samples.set());
  EXPECT_TRUE(rule_set.rule_for(down + ".scales", samples.shards(down + ".scales")).is<KeepReplica>());
  EXPECT_EQ(concatenation_of(rule_set.rule_for(down + ".g_idx", samples.shards(down + ".g_idx"))).add_per_rank, 0);
}

TEST(RuleGroupSize, must_be_given_when_nothing_determines_it) {
  auto samples = one_group_each(0x4000);
  auto const rule_set = RuleSet::make(samples.set());
  for (std::string const tensor : {".scales", ".qzeros", ".g_idx", ".qweight"}) {
    try {
      (void)rule_set.rule_for(down + tensor, samples.shards(down + tensor));
      ADD_FAILURE() << tensor;
    } catch (FormatError const& error) {
      EXPECT_THAT(error.what(), HasSubstr("add \"group_size\": 256")) << tensor;
    }
  }
  // If the config says that there are no groups, the scales must agree.
  samples.set().quantization = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}};
  auto const without_groups = RuleSet::make(samples.set());
  EXPECT_TRUE(without_groups.rule_for(down + ".scales", samples.shards(down + ".scales")).is<KeepReplica>());
  EXPECT_EQ(concatenation_of(without_groups.rule_for(down + ".g_idx", samples.shards(down + ".g_idx"))).add_per_rank,
            0);
}

}  // namespace
}  // namespace crossrank::checkpoint::group_size_test
