#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include <crossrank/error.hpp>

#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::checkpoint::rule_formats_test {
namespace {

using ::testing::HasSubstr;

std::string const up = "model.layers.0.mlp.up_proj";
std::string const down = "model.layers.0.mlp.down_proj";

/// The sizes of one tensor of a quantized layer.
struct FormatTensor {
  std::string suffix;
  Dtype dtype;
  std::function<Shape(std::int64_t out, std::int64_t in)> shape;
};

struct Format {
  char const* title;
  std::vector<FormatTensor> pieces;
  Json quantization = Json::object();
};

void PrintTo(Format const& format, std::ostream* out) { *out << format.title; }

Shape scalar(std::int64_t, std::int64_t) { return {}; }

std::vector<Format> formats() {
  using I = std::int64_t;
  auto const matrix = [](I out, I in) { return Shape{out, in}; };
  auto const per_out = [](I out, I) { return Shape{out}; };
  auto const column = [](I out, I) { return Shape{out, 1}; };
  auto const per_in = [](I, I in) { return Shape{in}; };
  auto const grid = [](I out_unit, I in_unit) {
    return [=](I out, I in) { return Shape{out / out_unit, in / in_unit}; };
  };
  auto const turned = [](I in_unit, I out_unit) {
    return [=](I out, I in) { return Shape{in / in_unit, out / out_unit}; };
  };
  auto const two = [](I, I) { return Shape{2}; };
  auto const three_words_per_32_in = [](I out, I in) { return Shape{in / 32 * 3, out}; };
  auto const three_words_per_32_out = [](I out, I in) { return Shape{in / 64, out / 32 * 3}; };
  Json const gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"desc_act", false}};
  Json const awq = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}};
  return {
      {"bf16", {{".weight", Dtype::bf16, matrix}, {".bias", Dtype::bf16, per_out}}},
      {"f16", {{".weight", Dtype::f16, matrix}}},
      {"gptq_8_bits_by_shapes",
       {{".qweight", Dtype::i32, turned(4, 1)},
        {".qzeros", Dtype::i32, turned(64, 4)},
        {".scales", Dtype::f16, turned(64, 1)},
        {".g_idx", Dtype::i32, per_in}}},
      {"awq_8_bits_by_shapes",
       {{".qweight", Dtype::i32, turned(1, 4)},
        {".qzeros", Dtype::i32, turned(64, 4)},
        {".scales", Dtype::f16, turned(64, 1)}}},
      {"fp8_tensor",
       {{".weight", Dtype::f8_e4m3, matrix},
        {".weight_scale", Dtype::f32, scalar},
        {".input_scale", Dtype::f32, scalar}}},
      {"fp8_channel", {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale", Dtype::f32, column}}},
      {"fp8_channel_vector", {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale", Dtype::f32, per_out}}},
      {"fp8_block",
       {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale_inv", Dtype::f32, grid(128, 128)}},
       {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}},
      {"fp8_block_with_powers_of_two",
       {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale_inv", Dtype::f8_e8m0, grid(128, 128)}},
       {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"scale_fmt", "ue8m0"}}},
      {"fp8_group_of_compressed_tensors",
       {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale", Dtype::bf16, grid(1, 128)}},
       {{"config_groups",
         {{"group_0",
           {{"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "group"}, {"group_size", 128}}}}}}}}},
      {"fp8_group_by_shapes", {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale", Dtype::bf16, grid(1, 64)}}},
      {"int8_block",
       {{".weight", Dtype::i8, matrix}, {".weight_scale_inv", Dtype::f32, grid(128, 128)}},
       {{"quant_method", "blockwise_int8"}, {"weight_block_size", {128, 128}}}},
      {"fp8_block_of_modelopt",
       {{".weight", Dtype::f8_e4m3, matrix},
        {".weight_scale", Dtype::f32,
         [](I out, I in) {
           return Shape{out / 128, 1, in / 128, 1};
         }}},
       {{"quantization", {{"quant_algo", "FP8_PB_WO"}}}}},
      {"int8_smoothquant",
       {{".weight", Dtype::i8, matrix},
        {".weight_scale", Dtype::f32, per_out},
        {".pre_quant_scale", Dtype::bf16, per_in},
        {".input_scale", Dtype::f32, scalar}}},
      {"int4_modelopt",
       {{".weight", Dtype::u8, grid(2, 1)},
        {".weight_scale", Dtype::f32, grid(1, 128)},
        {".pre_quant_scale", Dtype::bf16, per_in}},
       {{"quantization", {{"quant_algo", "W4A16_AWQ"}, {"group_size", 128}}}}},
      {"w4a8",
       {{".weight", Dtype::u8, grid(2, 1)},
        {".weight_scale", Dtype::f32, grid(1, 128)},
        {".weight_scale_2", Dtype::f32, scalar},
        {".input_scale", Dtype::f32, scalar},
        {".pre_quant_scale", Dtype::bf16, per_in}},
       {{"quantization", {{"quant_algo", "W4A8_AWQ"}, {"group_size", 128}}}}},
      {"autoawq",
       {{".qweight", Dtype::i32, turned(1, 8)},
        {".qzeros", Dtype::i32, turned(64, 8)},
        {".scales", Dtype::f16, turned(64, 1)},
        {".bias", Dtype::f16, per_out}},
       awq},
      {"gptq",
       {{".qweight", Dtype::i32, turned(8, 1)},
        {".qzeros", Dtype::i32, turned(64, 8)},
        {".scales", Dtype::f16, turned(64, 1)},
        {".g_idx", Dtype::i32, per_in}},
       gptq},
      {"gptq_3_bits",
       {{".qweight", Dtype::i32, three_words_per_32_in},
        {".qzeros", Dtype::i32, three_words_per_32_out},
        {".scales", Dtype::f16, turned(64, 1)},
        {".g_idx", Dtype::i32, per_in}},
       {{"quant_method", "gptq"}, {"bits", 3}, {"group_size", 64}, {"desc_act", false}}},
      {"gptq_3_bits_by_shapes",
       {{".qweight", Dtype::i32, three_words_per_32_in},
        {".qzeros", Dtype::i32, three_words_per_32_out},
        {".scales", Dtype::f16, turned(64, 1)},
        {".g_idx", Dtype::i32, per_in}}},
      {"int8_of_tensorrt_llm",
       {{".weight", Dtype::i8, matrix},
        {".per_channel_scale", Dtype::f32, per_out},
        {".act_scale", Dtype::f32, scalar},
        {".smoother", Dtype::f32, per_in}}},
      {"int8_with_zero_points",
       {{".weight", Dtype::i8, matrix},
        {".weight_scale", Dtype::bf16, column},
        {".weight_zero_point", Dtype::i8, column},
        {".input_scale", Dtype::f32, scalar},
        {".input_zero_point", Dtype::i8, scalar}}},
      {"gptq_without_groups",
       {{".qweight", Dtype::i32, turned(8, 1)},
        {".qzeros", Dtype::i32,
         [](I out, I) {
           return Shape{1, out / 8};
         }},
        {".scales", Dtype::f16,
         [](I out, I) {
           return Shape{1, out};
         }}},
       {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}, {"desc_act", false}}},
      {"nvfp4",
       {{".weight", Dtype::u8, grid(1, 2)},
        {".weight_scale", Dtype::f8_e4m3, grid(1, 16)},
        {".weight_scale_2", Dtype::f32, scalar},
        {".input_scale", Dtype::f32, scalar}}},
      {"nvfp4_with_fp8_activations",
       {{".weight", Dtype::u8, grid(1, 2)},
        {".weight_scale", Dtype::f8_e4m3, grid(1, 32)},
        {".weight_scale_2", Dtype::f32, scalar},
        {".input_scale", Dtype::f32, scalar}},
       {{"quantization", {{"quant_algo", "W4A8_NVFP4_FP8"}, {"group_size", 32}}}}},
      {"nvfp4_compressed_tensors",
       {{".weight_packed", Dtype::u8, grid(1, 2)},
        {".weight_scale", Dtype::f8_e4m3, grid(1, 16)},
        {".weight_global_scale", Dtype::f32, [](I, I) { return Shape{1}; }},
        {".input_global_scale", Dtype::f32, [](I, I) { return Shape{1}; }}}},
      {"mxfp4", {{".weight", Dtype::u8, grid(1, 2)}, {".weight_scale", Dtype::u8, grid(1, 32)}}},
      {"mxfp4_blocks",
       {{".weight_blocks", Dtype::u8,
         [](I out, I in) {
           return Shape{out, in / 32, 16};
         }},
        {".weight_scales", Dtype::u8, grid(1, 32)}}},
      {"mxfp8", {{".weight", Dtype::f8_e4m3, matrix}, {".weight_scale", Dtype::f8_e8m0, grid(1, 32)}}},
      {"compressed_int4",
       {{".weight_packed", Dtype::i32, grid(1, 8)},
        {".weight_scale", Dtype::bf16, grid(1, 64)},
        {".weight_zero_point", Dtype::i32, grid(8, 64)},
        {".weight_shape", Dtype::i64, two}},
       {{"quant_method", "compressed-tensors"},
        {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 64}}}}}}}}},
      {"compressed_int8_channel",
       {{".weight_packed", Dtype::i32, grid(1, 4)},
        {".weight_scale", Dtype::bf16, column},
        {".weight_shape", Dtype::i64, two}},
       {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}}}}}}}}},
      {"svdquant",
       {{".weight", Dtype::u8, grid(1, 2)},
        {".weight_scale", Dtype::f8_e4m3, grid(1, 16)},
        {".weight_scale_2", Dtype::f32, scalar},
        {".svdquant_lora_a", Dtype::bf16,
         [](I, I in) {
           return Shape{32, in};
         }},
        {".svdquant_lora_b", Dtype::bf16,
         [](I out, I) {
           return Shape{out, 32};
         }}}},
  };
}

void set_ids(WholeTensor& tensor, std::int32_t group) {
  for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
    auto const id = static_cast<std::int32_t>(i) / group;
    std::memcpy(tensor.bytes.data() + i * 4, &id, 4);
  }
}

std::vector<WholeTensor> model(Format const& format, std::mt19937& random) {
  std::vector<WholeTensor> tensors;
  for (auto const& [module, out, in] : {std::tuple(up, 512, 256), std::tuple(down, 256, 512)}) {
    for (auto const& piece : format.pieces) {
      tensors.push_back(random_tensor(module + piece.suffix, piece.dtype, piece.shape(out, in), random));
      if (piece.suffix == ".g_idx") set_ids(tensors.back(), 64);
      if (piece.suffix == ".weight_shape") set_shape(tensors.back(), out, in);
    }
  }
  return tensors;
}

class RuleFormats : public ::testing::TestWithParam<Format> {};

TEST_P(RuleFormats, merge_back_from_two_and_four_ranks) {
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  auto const tensors = model(GetParam(), random);
  for (int ranks : {2, 4}) {
    EXPECT_EQ(round_trip(tensors, feed_forward_config(), ranks, GetParam().quantization), "")
        << ranks << " ranks, seed " << seed;
  }
}

/// The dimension that shrinks shows along which axis a tensor is split.
TEST_P(RuleFormats, halve_exactly_one_dimension_of_sharded_tensors) {
  std::mt19937 random(1);
  auto const tensors = model(GetParam(), random);
  auto all = whole_set(tensors, feed_forward_config(), GetParam().quantization);
  auto const rule_set = RuleSet::make(all.set());
  for (auto const& [module, out, in] : {std::tuple(up, 512, 256), std::tuple(down, 256, 512)}) {
    bool const column = module == up;
    for (auto const& piece : GetParam().pieces) {
      auto const rule = rule_set.split_for(module + piece.suffix, *all.shards(module + piece.suffix).front(), 2);
      auto const expected = column ? piece.shape(out / 2, in) : piece.shape(out, in / 2);
      auto const whole = piece.shape(out, in);
      EXPECT_EQ(rule.shape(whole, 0), expected) << module + piece.suffix << ": " << rule.reason;
    }
  }
}

std::string title(::testing::TestParamInfo<Format> const& info) { return info.param.title; }

INSTANTIATE_TEST_SUITE_P(All, RuleFormats, ::testing::ValuesIn(formats()), title);

/// Returns the error for a set of two ranks with these tensors, which have no data.
std::string refusal(std::string const& name,
                    std::vector<std::pair<std::string, std::pair<Dtype, Shape>>> const& tensors,
                    Json const& quantization = Json::object(), Json const& model_config = feed_forward_config()) {
  SampleSet samples(2, model_config);
  samples.set().quantization = quantization;
  for (auto const& [tensor, kind] : tensors) samples.add(tensor, kind.first, kind.second);
  try {
    (void)RuleSet::make(samples.set()).rule_for(name, samples.shards(name));
  } catch (FormatError const& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(ShardBoundaries, reject_blocks_shared_by_ranks) {
  auto narrow = feed_forward_config();
  narrow["intermediate_size"] = 192;
  SampleSet samples(2, narrow);
  samples.add(up + ".weight", Dtype::f8_e4m3, {96, 256});
  // They could be merged if their scales agreed.
  for (int const rank : {0, 1})
    samples.at(rank).add(up + ".weight_scale_inv", Dtype::f32, {1, 2}, std::vector<std::byte>(8, std::byte(32 + rank)));
  auto const scale = up + ".weight_scale_inv";
  try {
    (void)RuleSet::make(samples.set()).rule_for(scale, samples.shards(scale));
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("multiples of 128 outputs"));
    EXPECT_THAT(error.what(), HasSubstr("`policy` requantize"));
  }
}

TEST(ShardBoundaries, reject_groups_shared_by_ranks) {
  auto narrow = feed_forward_config();
  narrow["intermediate_size"] = 48;
  EXPECT_THAT(
      refusal(down + ".weight",
              {{down + ".weight", {Dtype::u8, {256, 12}}}, {down + ".weight_scale", {Dtype::f8_e4m3, {256, 2}}}},
              Json::object(), narrow),
      HasSubstr("multiples of 16 inputs"));
}

TEST(ShardBoundaries, reject_odd_rows_of_packed_pairs) {
  auto narrow = feed_forward_config();
  narrow["model_type"] = "phi3";
  narrow["intermediate_size"] = 6;
  std::string const fused = "model.layers.0.mlp.gate_up_proj";
  EXPECT_THAT(refusal(fused + ".weight",
                      {{fused + ".weight", {Dtype::u8, {3, 256}}}, {fused + ".weight_scale", {Dtype::f32, {6, 2}}}},
                      Json::object(), narrow),
              HasSubstr("multiples of 2 outputs"));
}

/// The last word would hold tokens that exist and others that do not.
TEST(ShardBoundaries, reject_vocabularies_that_end_inside_a_stored_value) {
  auto config = feed_forward_config();
  Json const awq = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}};
  auto const refused = [&](int tokens) {
    config["vocab_size"] = tokens;
    return refusal("lm_head.qweight",
                   {{"lm_head.qweight", {Dtype::i32, {256, 8}}},
                    {"lm_head.qzeros", {Dtype::i32, {4, 8}}},
                    {"lm_head.scales", {Dtype::f16, {4, 64}}}},
                   awq, config);
  };
  EXPECT_EQ(refused(120), "no refusal");
  EXPECT_THAT(refused(124), HasSubstr("multiples of 8 tokens"));
}

TEST(ShardBoundaries, reject_three_bits_outside_of_three_words) {
  auto const three_bits = [](char const* method) {
    return Json{{"quant_method", method}, {"bits", 3}, {"group_size", 64}};
  };
  auto const refused = [&](Json const& quantization, Shape const& weight) {
    return refusal(down + ".qweight",
                   {{down + ".qweight", {Dtype::i32, weight}}, {down + ".scales", {Dtype::f16, {4, 256}}}},
                   quantization);
  };
  EXPECT_EQ(refused(three_bits("gptq"), {24, 256}), "no refusal");
  EXPECT_THAT(refused(three_bits("gptq"), {25, 256}), HasSubstr("groups of 3 words"));
  EXPECT_THAT(refused(three_bits("awq"), {256, 24}), HasSubstr("3 bits do not fit evenly"));
}

TEST(ShardBoundaries, reject_activation_order_across_shards) {
  Json const gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"desc_act", true}};
  EXPECT_THAT(refusal(down + ".qweight",
                      {{down + ".qweight", {Dtype::i32, {32, 256}}}, {down + ".scales", {Dtype::f16, {4, 256}}}}, gptq),
              HasSubstr("order of activations"));
}

TEST(ShardBoundaries, reject_splits_of_inputs_with_reordered_groups) {
  std::mt19937 random(6);
  auto const split = [&](bool ordered, Json const& quantization) {
    std::vector<WholeTensor> tensors{random_tensor(down + ".qweight", Dtype::i32, {64, 256}, random),
                                     random_tensor(down + ".scales", Dtype::f16, {8, 256}, random),
                                     random_tensor(down + ".g_idx", Dtype::i32, {512}, random)};
    set_ids(tensors.back(), 64);
    if (!ordered)
      std::swap_ranges(tensors.back().bytes.begin(), tensors.back().bytes.begin() + 4, tensors.back().bytes.end() - 4);
    auto all = whole_set(tensors, feed_forward_config(), quantization);
    return RuleSet::make(all.set()).split_for(down + ".g_idx", *all.shards(down + ".g_idx").front(), 2);
  };
  // No config has the order; only the ids show it.
  EXPECT_EQ(split(true, Json::object()).subtract_per_group, 4);
  EXPECT_THROW((void)split(false, Json::object()), FormatError);
  for (Json const& order : {Json("group"), Json("dynamic"), Json(true)}) {
    Json const compressed{{"quant_method", "compressed-tensors"},
                          {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"actorder", order}}}}}}}};
    EXPECT_THROW((void)split(true, compressed), FormatError) << order;
  }
}

// The number of ranks is the mistake, not the model.
TEST(ShardBoundaries, reject_numbers_of_ranks_that_split_a_stored_value) {
  std::mt19937 random(9);
  std::vector<WholeTensor> const tensors{random_tensor(down + ".qweight", Dtype::i32, {64, 256}, random),
                                         random_tensor(down + ".scales", Dtype::f16, {8, 256}, random)};
  auto all = whole_set(tensors, feed_forward_config(), {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}});
  auto const split = [&](int ranks) {
    return RuleSet::make(all.set()).split_for(down + ".scales", *all.shards(down + ".scales").front(), ranks);
  };
  EXPECT_NO_THROW((void)split(8));
  EXPECT_THROW((void)split(16), UsageError);
}

TEST(ShardBoundaries, reject_splits_of_weights_without_rows) {
  std::mt19937 random(8);
  auto const split = [&](std::string const& module) {
    std::vector<WholeTensor> const tensors{random_tensor(module + ".weight", Dtype::u8, {512 * 256 / 2, 1}, random)};
    auto all = whole_set(tensors, feed_forward_config(), {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}});
    return RuleSet::make(all.set()).split_for(module + ".weight", *all.shards(module + ".weight").front(), 2);
  };
  for (auto const& module : {up, down}) {
    try {
      (void)split(module);
      ADD_FAILURE() << module;
    } catch (FormatError const& error) {
      EXPECT_THAT(error.what(), HasSubstr("bitsandbytes"));
    }
  }
}

TEST(ShardBoundaries, keep_group_ids_that_were_never_set) {
  std::mt19937 random(7);
  std::vector<WholeTensor> tensors{random_tensor(down + ".weight_packed", Dtype::i32, {256, 64}, random),
                                   random_tensor(down + ".weight_scale", Dtype::bf16, {256, 8}, random),
                                   random_tensor(down + ".weight_g_idx", Dtype::i32, {512}, random)};
  std::fill(tensors.back().bytes.begin(), tensors.back().bytes.end(), std::byte{0xff});
  EXPECT_EQ(round_trip(tensors, feed_forward_config(), 2), "");
}

TEST(ShardBoundaries, reject_ranks_with_different_formats) {
  SampleSet samples(2, feed_forward_config());
  samples.at(0).add(up + ".weight", Dtype::f8_e4m3, {256, 256});
  samples.at(1).add(up + ".weight", Dtype::f8_e4m3, {256, 256});
  samples.at(0).add(up + ".weight_scale", Dtype::f32, {});
  samples.at(1).add(up + ".weight_scale", Dtype::f32, {256, 1});
  EXPECT_THROW((void)RuleSet::make(samples.set()).rule_for(up + ".weight", samples.shards(up + ".weight")),
               FormatError);
}

TEST(RuleScales, use_the_largest_scale_of_activations_and_caches) {
  SampleSet samples(2, feed_forward_config());
  samples.add(up + ".weight", Dtype::f8_e4m3, {256, 256}).add(up + ".weight_scale", Dtype::f32, {});
  samples.add(up + ".input_scale", Dtype::f32, {}).add("model.layers.0.self_attn.k_proj.k_scale", Dtype::f32, {});
  samples.add("model.layers.0.self_attn.kv_scale", Dtype::f32, {1});
  auto const rule_set = RuleSet::make(samples.set());
  for (auto const& name : {up + ".input_scale", std::string("model.layers.0.self_attn.kv_scale")}) {
    auto const rule = rule_set.rule_for(name, samples.shards(name));
    EXPECT_EQ(rule.kind, MergeKind(Reduce{ReduceOp::max})) << name;
  }
  EXPECT_TRUE(rule_set.rule_for(up + ".weight_scale", samples.shards(up + ".weight_scale")).is<KeepReplica>());
}

TEST(RuleScales, of_a_cache_per_head_are_sharded_with_the_heads) {
  auto const name = [](std::string_view scale) { return "model.layers.0.self_attn." + std::string(scale); };
  struct Case {
    std::string_view scale;
    Shape whole;
    int ranks;
    Shape shard;
    int replicas;
  };
  // The config has 8 heads and 4 key/value heads.
  for (auto const& [scale, whole, ranks, shard, replicas] :
       {Case{"k_scale", {4, 1, 1}, 2, {2, 1, 1}, 1}, Case{"v_scale", {4}, 2, {2}, 1},
        Case{"k_scale", {4, 1, 1}, 4, {1, 1, 1}, 1}, Case{"k_scale", {4, 1, 1}, 8, {1, 1, 1}, 2},
        Case{"q_scale", {8, 1, 1}, 4, {2, 1, 1}, 1}}) {
    SampleSet single(1, feed_forward_config());
    single.add(name(scale), Dtype::f32, whole);
    auto const split = RuleSet::make(single.set()).split_for(name(scale), *single.shards(name(scale)).front(), ranks);
    EXPECT_EQ(split.axis, 0) << scale;
    EXPECT_EQ(split.shape(whole, ranks - 1), shard) << scale;
    SampleSet samples(ranks, feed_forward_config());
    samples.add(name(scale), Dtype::f32, shard);
    auto const rule = RuleSet::make(samples.set()).rule_for(name(scale), samples.shards(name(scale)));
    EXPECT_EQ(rule.kind, MergeKind(Concatenate{.axis = 0, .replicas = replicas})) << scale << " on " << ranks;
  }
}

TEST(RuleScales, of_a_cache_are_refused_when_their_heads_are_unclear) {
  std::string const name = "model.layers.0.self_attn.k_scale";
  auto const merge = [&](Shape shape) {
    SampleSet samples(2, feed_forward_config());
    samples.add(name, Dtype::f32, std::move(shape));
    return test::error_of<FormatError>(
        [&] { (void)RuleSet::make(samples.set()).rule_for(name, samples.shards(name)); });
  };
  EXPECT_THAT(merge({2, 8}).message, testing::HasSubstr("neither one value nor one per head"));
  EXPECT_THAT(merge({3, 1, 1}).message, testing::HasSubstr("contradict the config"));
  // On four ranks each would get a scale that looks like one of the whole layer.
  SampleSet single(1, feed_forward_config());
  single.add(name, Dtype::f32, {4});
  auto const refused = test::error_of<FormatError>(
      [&] { (void)RuleSet::make(single.set()).split_for(name, *single.shards(name).front(), 4); });
  EXPECT_THAT(refused.hint, testing::HasSubstr(R"("axis": 0)"));
}

TEST(RuleScales, use_the_smallest_divisor) {
  SampleSet samples(2, feed_forward_config());
  samples.add(up + ".weight_packed", Dtype::u8, {256, 128}).add(up + ".weight_scale", Dtype::f8_e4m3, {256, 16});
  samples.add(up + ".input_global_scale", Dtype::f32, {1});
  auto const rule =
      RuleSet::make(samples.set()).rule_for(up + ".input_global_scale", samples.shards(up + ".input_global_scale"));
  EXPECT_EQ(rule.kind, MergeKind(Reduce{ReduceOp::min}));
}

// ModelOpt packs the experts of these models along their inputs and transposes them back.
TEST(RuleFormats, know_the_packed_axis_of_stacks) {
  std::string const stack = "model.layers.0.mlp.experts.down_proj";
  Json const config{
      {"model_type", "gpt_oss"}, {"hidden_size", 64}, {"intermediate_size", 128}, {"num_local_experts", 4}};
  for (bool const by_inputs : {true, false}) {
    SampleSet whole(1, config);
    whole.add(stack, Dtype::u8, by_inputs ? Shape{4, 64, 64} : Shape{4, 128, 32});
    whole.add(stack + "_weight_scale", Dtype::f8_e4m3, by_inputs ? Shape{4, 8, 64} : Shape{4, 128, 4});
    auto const rule_set = RuleSet::make(whole.set());
    auto const half = [&](std::string const& name) {
      auto const& tensor = *whole.shards(name).front();
      return rule_set.split_for(name, tensor, 2).shape(tensor.shape, 1);
    };
    EXPECT_EQ(half(stack), by_inputs ? (Shape{4, 32, 64}) : (Shape{4, 64, 32}));
    EXPECT_EQ(half(stack + "_weight_scale"), by_inputs ? (Shape{4, 4, 64}) : (Shape{4, 64, 4}));
  }
}

}  // namespace
}  // namespace crossrank::checkpoint::rule_formats_test
