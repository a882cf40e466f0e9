#include "workspace/checkpoint/quantization/requantize.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/tensor/small_float.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"

namespace crossrank::checkpoint::requantize_test {
namespace {

std::vector<std::byte> of(float value) {
  std::vector<std::byte> bytes(4);
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random, unsigned mask) {
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random() & mask);
  return bytes;
}

float f8(std::byte code) { return decode_small_float(Dtype::f8_e4m3, std::to_integer<std::uint16_t>(code)); }

std::string const up = "model.layers.0.mlp.up_proj";
Json const config = {{"hidden_size", 64}, {"intermediate_size", 32}, {"hidden_act", "silu"}};

/// Merges tensor `name` of two ranks with a policy.
WholeTensor merged(SampleSet& samples, std::string const& name, ScalePolicy policy) {
  auto const shards = samples.shards(name);
  auto const rule = RuleSet::make(samples.set(), {}, policy).rule_for(name, shards);
  std::vector<WholeTensor> parts;
  for (int rank = 0; rank < 2; ++rank) {
    auto const& tensor = *at_rank(shards, rank);
    auto const index = as_size(&tensor - samples.at(rank).tensors().data());
    parts.push_back({name, tensor.dtype, tensor.shape, samples.at(rank).bytes(index)});
  }
  std::string problem;
  auto result = merge_slowly(rule, parts, problem);
  EXPECT_EQ(problem, "") << rule.reason;
  return result;
}

float scalar(WholeTensor const& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data(), 4);
  return value;
}

TEST(Requantize, converts_fp8_of_two_ranks_to_the_larger_scale) {
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  SampleSet samples(2, config);
  std::array<float, 2> const scales{0.013F, 0.029F};
  std::vector<std::byte> all;
  for (int rank = 0; rank < 2; ++rank) {
    auto const bytes = random_bytes(16 * 64, random, 0xf7U);
    all.insert(all.end(), bytes.begin(), bytes.end());
    samples.at(rank).add(up + ".weight", Dtype::f8_e4m3, {16, 64}, bytes);
    samples.at(rank).add(up + ".weight_scale", Dtype::f32, {}, of(at_rank(scales, rank)));
  }
  auto const weight = merged(samples, up + ".weight", ScalePolicy::rescale);
  auto const scale = scalar(merged(samples, up + ".weight_scale", ScalePolicy::rescale));
  EXPECT_EQ(scale, scales[1]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const before = f8(all[i]) * scales[i / (16 * 64)];
    auto const after = f8(weight.bytes[i]) * scale;
    EXPECT_LE(std::abs(after - before), std::max(std::abs(before) / 16, scale / 1024) * 1.0001F) << seed;
    if (i < 16 * 64) continue;
    EXPECT_EQ(weight.bytes[i], all[i]) << "the rank with the larger scale must not change";
  }
}

TEST(Requantize, leaves_equal_scales_unchanged) {
  std::mt19937 random(1);
  SampleSet samples(2, config);
  for (int rank = 0; rank < 2; ++rank) {
    samples.at(rank).add(up + ".weight", Dtype::f8_e4m3, {16, 64}, random_bytes(16 * 64, random, 0x77U));
    samples.at(rank).add(up + ".weight_scale", Dtype::f32, {}, of(0.5F));
  }
  auto const rule = RuleSet::make(samples.set(), {}, ScalePolicy::requantize)
                        .rule_for(up + ".weight", samples.shards(up + ".weight"));
  EXPECT_FALSE(concatenation_of(rule).requantization);
}

std::vector<float> nvfp4_values(std::vector<std::byte> const& weight, std::vector<std::byte> const& scale,
                                float global) {
  std::vector<float> values(weight.size() * 2);
  decode_small_floats(Dtype::f4, weight, values);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= f8(scale[i / 16]) * global;
  return values;
}

void expect_nvfp4_within_bounds(ScalePolicy policy, bool divisor) {
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  SampleSet samples(2, config);
  std::array<float, 2> const globals{0.02F, 0.05F};
  std::vector<float> before;
  std::string const packed = up + (divisor ? ".weight_packed" : ".weight");
  std::string const common = up + (divisor ? ".weight_global_scale" : ".weight_scale_2");
  for (int rank = 0; rank < 2; ++rank) {
    auto const weight = random_bytes(16 * 32, random, 0xffU);
    auto const scale = random_bytes(16 * 4, random, 0x77U);
    auto const global = at_rank(globals, rank);
    auto const values = nvfp4_values(weight, scale, global);
    before.insert(before.end(), values.begin(), values.end());
    samples.at(rank).add(packed, Dtype::u8, {16, 32}, weight);
    samples.at(rank).add(up + ".weight_scale", Dtype::f8_e4m3, {16, 4}, scale);
    samples.at(rank).add(common, Dtype::f32, {1}, of(divisor ? 1 / global : global));
  }
  auto global = scalar(merged(samples, common, policy));
  if (divisor) global = 1 / global;
  EXPECT_NEAR(global, 0.05F, 1e-6F);
  auto const after =
      nvfp4_values(merged(samples, packed, policy).bytes, merged(samples, up + ".weight_scale", policy).bytes, global);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t block = 0; block < before.size(); block += 16) {
    float largest = 0;
    for (std::size_t i = block; i < block + 16; ++i) largest = std::max(largest, std::abs(before[i]));
    for (std::size_t i = block; i < block + 16; ++i) {
      EXPECT_LE(std::abs(after[i] - before[i]), std::max(largest / 5, global / 128) * 1.0001F) << "seed " << seed;
    }
  }
}

TEST(Requantize, keeps_nvfp4_within_the_stated_bound) {
  for (auto const policy : {ScalePolicy::rescale, ScalePolicy::requantize}) {
    for (bool const divisor : {false, true}) expect_nvfp4_within_bounds(policy, divisor);
  }
}

TEST(Requantize, changes_a_range_like_the_whole) {
  std::mt19937 random(11);
  auto source = std::make_shared<SampleSource>("rank0");
  auto const weight = random_bytes(64 * 32, random, 0xffU);
  auto const scales = random_bytes(64 * 4, random, 0x77U);
  source->add("weight", Dtype::u8, {64, 32}, weight);
  source->add("scale", Dtype::f8_e4m3, {64, 4}, scales);
  for (auto const kernel : {RequantizeKernel::scale_f8, RequantizeKernel::fp4_values, RequantizeKernel::fp4_scales}) {
    bool const values = kernel == RequantizeKernel::fp4_values;
    std::vector<float> factors{0.37F};
    if (kernel == RequantizeKernel::scale_f8) {
      factors.clear();
      for (int row = 0; row < 64; ++row) factors.push_back(1.0F / static_cast<float>(row + 1));
    }
    Requantization::Shard shard{
        .own = {source, values ? 0U : 1U}, .partner = {source, values ? 1U : 0U}, .factors = factors};
    Requantization const change(kernel, 0, {shard});
    auto whole = values ? weight : scales;
    auto const before = whole;
    change.apply(0, 0, whole);
    for (int i = 0; i < 50; ++i) {
      auto const begin = random() % before.size();
      auto const length = random() % (before.size() - begin) + 1;
      std::vector<std::byte> part(before.begin() + static_cast<std::ptrdiff_t>(begin),
                                  before.begin() + static_cast<std::ptrdiff_t>(begin + length));
      change.apply(0, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

TEST(Requantize, uses_each_ranks_own_shape) {
  std::mt19937 random(13);
  for (auto const kernel : {RequantizeKernel::scale_f8, RequantizeKernel::fp4_values, RequantizeKernel::fp4_scales}) {
    std::vector<Requantization::Shard> shards;
    for (std::int64_t const blocks : {4, 2, 6}) {
      auto source = std::make_shared<SampleSource>("rank");
      source->add("weight", Dtype::u8, {8, 8 * blocks}, random_bytes(as_size(64 * blocks), random, 0xffU));
      source->add("scale", Dtype::f8_e4m3, {8, blocks}, random_bytes(as_size(8 * blocks), random, 0x77U));
      bool const values = kernel == RequantizeKernel::fp4_values;
      std::vector<float> factors;
      for (int row = 0; row < 8; ++row) factors.push_back(1.0F / static_cast<float>(row + 1));
      shards.push_back(
          {.own = {source, values ? 0U : 1U}, .partner = {source, values ? 1U : 0U}, .factors = std::move(factors)});
    }
    Requantization const all(kernel, 0, shards);
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      auto const& own = shards[rank].own;
      auto const bytes = dynamic_cast<SampleSource const&>(*own.source).bytes(own.tensor);
      auto changed = bytes;
      all.apply(rank, 0, changed);
      auto expected = bytes;
      Requantization(kernel, 0, {shards[rank]}).apply(0, 0, expected);
      EXPECT_EQ(changed, expected) << "rank " << rank;
    }
  }
}

TEST(Requantize, keeps_infinities_and_nan) {
  SampleSet samples(2, config);
  std::vector<std::byte> odd(16 * 64, std::byte{0x3c});
  constexpr std::byte values[] = {std::byte{0x7c}, std::byte{0xfc}, std::byte{0x7e}};  // infinities and a NaN
  std::ranges::copy(values, odd.begin());
  for (int rank = 0; rank < 2; ++rank) {
    samples.at(rank).add(up + ".weight", Dtype::f8_e5m2, {16, 64}, odd);
    samples.at(rank).add(up + ".weight_scale", Dtype::f32, {}, of(rank == 0 ? 0.01F : 0.02F));
  }
  auto const weight = merged(samples, up + ".weight", ScalePolicy::rescale);
  EXPECT_EQ(weight.bytes[0], values[0]);
  EXPECT_EQ(weight.bytes[1], values[1]);
  EXPECT_TRUE(std::isnan(decode_small_float(Dtype::f8_e5m2, std::to_integer<std::uint16_t>(weight.bytes[2]))));
  EXPECT_EQ(weight.bytes[3], std::byte{0x38}) << "half of 1";
}

/// The ranks share the only key/value head. With other scales, equal bytes are other values.
TEST(Requantize, rejects_replicas_under_different_scales) {
  Json const attention = {{"model_type", "phi3"},     {"hidden_size", 64},        {"intermediate_size", 32},
                          {"num_attention_heads", 4}, {"num_key_value_heads", 1}, {"head_dim", 16}};
  std::string const fused = "model.layers.0.self_attn.qkv_proj";
  for (bool const alike : {true, false}) {
    SampleSet samples(2, attention);
    for (int rank = 0; rank < 2; ++rank) {
      samples.at(rank).add(fused + ".weight", Dtype::f8_e4m3, {64, 64}, std::vector<std::byte>(64 * 64));
      samples.at(rank).add(fused + ".weight_scale", Dtype::f32, {}, of(alike || rank == 0 ? 0.01F : 0.02F));
    }
    auto const rule_set = RuleSet::make(samples.set(), {}, ScalePolicy::rescale);
    auto const rule = [&] { (void)rule_set.rule_for(fused + ".weight", samples.shards(fused + ".weight")); };
    if (alike) {
      EXPECT_NO_THROW(rule());
    } else {
      EXPECT_THROW(rule(), FormatError);
    }
  }
}

/// The factor of a value depends on its expert and on its output, which is not the second dimension.
TEST(Requantize, scales_each_output_of_a_transposed_stack) {
  auto source = std::make_shared<SampleSource>("rank0");
  std::vector<std::byte> const ones(2 * 3 * 4, std::byte{0x38});
  source->add("weight", Dtype::f8_e4m3, {2, 3, 4}, ones);
  std::vector<float> factors;
  for (int i = 0; i < 8; ++i) factors.push_back(std::ldexp(1.0F, -i));
  Requantization const change(RequantizeKernel::scale_f8, 2, {{.own = {source, 0}, .factors = factors}});

  auto whole = ones;
  change.apply(0, 0, whole);

  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(f8(whole[i]), factors[i / 12 * 4 + i % 4]) << i;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::vector<std::byte> one{ones[i]};
    change.apply(0, i, one);
    EXPECT_EQ(one.front(), whole[i]) << i;
  }
}

/// Bytes are counted, not values of four bits.
TEST(Requantize, finds_the_expert_of_packed_values) {
  for (auto const dtype : {Dtype::u8, Dtype::f4}) {
    auto source = std::make_shared<SampleSource>("rank0");
    std::vector<std::byte> const codes(2 * 4 * 8, std::byte{0x77});
    source->add("weight", dtype, {2, 4, dtype == Dtype::u8 ? 8 : 16}, codes);
    source->add("scale", Dtype::f8_e4m3, {2, 4, 1}, std::vector<std::byte>(8, std::byte{0x01}));
    Requantization const change(RequantizeKernel::fp4_values, 0,
                                {{.own = {source, 0}, .partner = {source, 1}, .factors = {1.0F, 0.25F}}});
    auto changed = codes;
    change.apply(0, 0, changed);
    for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(changed[i] == codes[i], i < codes.size() / 2) << i;
  }
}

TEST(Requantize, rejects_scales_of_zero) {
  SampleSet samples(2, config);
  for (int rank = 0; rank < 2; ++rank) {
    samples.at(rank).add(up + ".weight", Dtype::f8_e4m3, {16, 64}, std::vector<std::byte>(16 * 64));
    samples.at(rank).add(up + ".weight_scale", Dtype::f32, {}, of(rank == 0 ? 0.0F : 1.0F));
  }
  auto const rule_set = RuleSet::make(samples.set(), {}, ScalePolicy::rescale);
  EXPECT_THROW((void)rule_set.rule_for(up + ".weight", samples.shards(up + ".weight")), FormatError);
}

}  // namespace
}  // namespace crossrank::checkpoint::requantize_test
