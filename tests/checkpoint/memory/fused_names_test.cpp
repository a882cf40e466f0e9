// Layers that a rule file separates are fused again when names are translated backward.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/checkpoint/memory_export.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

using checkpoint::ModelDescription;
using checkpoint::Placements;
using checkpoint::RuleDirection;
using checkpoint::Shard;
using test::bytes_of;
using test::difference;
using test::run_thread_ranks;
using testing::AllOf;
using testing::HasSubstr;

constexpr char const* attention = "decoder.layers.0.self_attention.linear_qkv";
constexpr char const* feed_forward = "decoder.layers.0.mlp.linear_fc1";

/// A model with 4 heads of 4 values, 2 key/value heads and a gated feed-forward layer.
Json fused_config() {
  return {{"model_type", "llama"},       {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 16},           {"intermediate_size", 24},
          {"num_attention_heads", 4},    {"num_key_value_heads", 2},
          {"num_hidden_layers", 2},      {"vocab_size", 32},
          {"max_position_embeddings", 8}};
}

/// Its weights in Megatron's names, with biases.
StateDict fused_model() {
  std::mt19937 random(5);
  StateDict weights;
  auto const add = [&](std::string const& name, Shape const& shape) {
    weights.insert(name, test::random_tensor(random, shape, Dtype::bf16));
  };
  add("embedding.word_embeddings.weight", {32, 16});
  for (std::string const layer : {"decoder.layers.0.", "decoder.layers.1."}) {
    add(layer + "self_attention.linear_qkv.weight", {32, 16});
    add(layer + "self_attention.linear_qkv.bias", {32});
    add(layer + "self_attention.linear_qkv.layer_norm_weight", {16});
    add(layer + "self_attention.linear_proj.weight", {16, 16});
    add(layer + "mlp.linear_fc1.weight", {48, 16});
    add(layer + "mlp.linear_fc1.bias", {48});
    add(layer + "mlp.linear_fc1.layer_norm_weight", {16});
    add(layer + "mlp.linear_fc2.weight", {16, 24});
  }
  add("decoder.final_layernorm.weight", {16});
  add("output_layer.weight", {32, 16});
  return weights;
}

constexpr std::string_view shipped_attention = R"("query", "key_value", "kv_values")";
constexpr std::string_view shipped_gate = R"("ffn", "ffn")";

/// The rule file for Megatron's names of a Llama, with other widths of the parts.
std::string fused_rules(std::string_view attention_parts = shipped_attention,
                        std::string_view gate_parts = shipped_gate) {
  std::ifstream file(CROSSRANK_TEST_DATA "/../../examples/rules/megatron_llama.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  for (auto const& [shipped, other] :
       {std::pair(shipped_attention, attention_parts), std::pair(shipped_gate, gate_parts)}) {
    auto const at = text.find(shipped);
    EXPECT_NE(at, std::string::npos);
    if (at != std::string::npos) text.replace(at, shipped.size(), other);
  }
  return text;
}

/// A rule file, and the model that it belongs to.
class FusedNames : public testing::Test {
 protected:
  ModelDescription described(RuleDirection direction) const {
    return {.config = config_, .rules = folder_.path() / "rules.json", .direction = direction};
  }
  void write_rules(std::string const& text) const { std::ofstream(folder_.path() / "rules.json") << text; }

  /// Translates weights that rank 0 of one rank holds.
  StateDict translated(StateDict const& weights, RuleDirection direction) const {
    StateDict all;
    run_thread_ranks(1, [&](Collective const& world) {
      all = checkpoint::get_full_state_dict(world, weights, {}, {.model = described(direction)});
    });
    return all;
  }

  /// Returns the error that each of two ranks gets when it translates the weights backward.
  std::string refusal(StateDict const& weights) const {
    std::vector<std::string> texts(2);
    run_thread_ranks(2, [&](Collective const& world) {
      try {
        (void)checkpoint::get_full_state_dict(world, weights, {}, {.model = described(RuleDirection::backward)});
      } catch (FormatError const& error) {
        at_rank(texts, world.rank()) = error.what();
      }
    });
    EXPECT_NE(texts[0], "");
    EXPECT_NE(texts[1], "");
    return texts[0];
  }

  test::TemporaryDirectory folder_{};
  Json config_ = fused_config();
};

/// The number of ranks, and the widths of the parts in the rules.
struct FusedCase {
  int ranks = 1;
  char const* attention = R"("query", "key_value", "kv_values")";
  char const* gate = R"("ffn", "ffn")";
};

class FusedRoundTrip : public FusedNames, public testing::WithParamInterface<FusedCase> {};

TEST_P(FusedRoundTrip, gives_the_same_bytes_and_names_however_the_layers_are_sharded) {
  auto const ranks = GetParam().ranks;
  write_rules(fused_rules(GetParam().attention, GetParam().gate));
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  ASSERT_TRUE(separate.contains("model.layers.1.self_attn.v_proj.bias"));
  ASSERT_FALSE(separate.contains(std::string(attention) + ".weight"));
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    test::ShardedModel sharded;
    for (auto const& [name, tensor] : separate) {
      auto const dims = static_cast<std::int64_t>(tensor.shape().size());
      auto const dim = static_cast<std::int64_t>(random()) % (dims + 1);
      sharded[name] = {.whole = tensor};
      if (dim < dims) sharded[name].placement.placements = {Shard{dim}};
    }
    run_thread_ranks(ranks, [&](Collective const& world) {
      auto const part = test::part_of(sharded, world.rank(), ranks);
      auto const model = described(RuleDirection::backward);
      auto const found =
          checkpoint::get_full_state_dict(world, part.weights, part.placements, {.model = model, .dst = ranks - 1});
      if (world.rank() == ranks - 1) {
        EXPECT_EQ(difference(bytes_of(megatron), bytes_of(found)), "") << "seed " << seed;
      }
      auto const out = folder_.path() / ("out" + std::to_string(seed));
      (void)checkpoint::consolidate(world, part.weights, part.placements, out,
                                    {.model = model, .max_shard_bytes = 3000});
      if (world.rank() == 0) {
        EXPECT_EQ(difference(bytes_of(megatron), test::read_checkpoint(out, true)), "");
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shardings, FusedRoundTrip,
                         testing::Values(FusedCase{1}, FusedCase{2}, FusedCase{3}, FusedCase{4},
                                         FusedCase{2, "8, 4, 4", "1, 1"}, FusedCase{4, "8, 4, 4", "24, 24"}));

TEST_F(FusedNames, of_grouped_layers_take_the_rows_of_each_key_value_head) {
  write_rules(fused_rules());
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  auto const& fused = megatron.at(std::string(attention) + ".weight");
  auto const same = [&](std::string const& part, std::int64_t row, std::int64_t in_fused, std::int64_t count) {
    auto const own = separate.at("model.layers.0.self_attn." + part + "_proj.weight").narrow(0, row, count);
    auto const there = fused.narrow(0, in_fused, count);
    return std::ranges::equal(own.bytes(), there.bytes());
  };
  EXPECT_TRUE(same("q", 0, 0, 8) && same("k", 0, 8, 4) && same("v", 0, 12, 4));
  EXPECT_TRUE(same("q", 8, 16, 8) && same("k", 4, 24, 4) && same("v", 4, 28, 4));
  EXPECT_EQ(difference(bytes_of(megatron), bytes_of(translated(separate, RuleDirection::backward))), "");
}

// With 4 tensor-parallel ranks, neighbours have the same key/value head.
TEST_F(FusedNames, join_tensor_parallel_parts) {
  write_rules(fused_rules());
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  for (int const tp : {2, 4}) {
    run_thread_ranks(tp, [&](Collective const& world) {
      Placements const sharding{.tp_rank = world.rank(), .tp = tp};
      auto const own = checkpoint::reshard(world, world.rank() == 0 ? separate : StateDict(), {}, sharding,
                                           {.model = {.config = config_}});
      EXPECT_EQ(own.at("model.layers.0.self_attn.k_proj.weight").shape(), (Shape{4, 16}));

      auto const found =
          checkpoint::get_full_state_dict(world, own, sharding, {.model = described(RuleDirection::backward)});

      if (world.rank() == 0) {
        EXPECT_EQ(difference(bytes_of(megatron), bytes_of(found)), "") << tp;
      }
    });
  }
}

TEST_F(FusedNames, join_parts_of_different_ranks) {
  write_rules(fused_rules());
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  run_thread_ranks(2, [&](Collective const& world) {
    StateDict own;
    for (auto const& [name, tensor] : separate) {
      bool const second = name.find("k_proj") != std::string::npos || name.find("up_proj") != std::string::npos;
      if (second == (world.rank() == 1)) own.insert(name, tensor);
    }
    Placements const alone{.otherwise = {.mesh = {.ranks = {world.rank()}}}};
    auto const found =
        checkpoint::get_full_state_dict(world, own, alone, {.model = described(RuleDirection::backward)});
    if (world.rank() == 0) {
      EXPECT_EQ(difference(bytes_of(megatron), bytes_of(found)), "");
    }
  });
}

// The layers of each stage start at 0.
TEST_F(FusedNames, number_the_layers_of_stages) {
  write_rules(fused_rules());
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  for (bool const backward : {false, true}) {
    auto const& given = backward ? separate : megatron;
    auto const& expected = backward ? megatron : separate;
    run_thread_ranks(2, [&](Collective const& world) {
      StateDict own;
      for (auto const& [name, tensor] : given) {
        auto const layer = name.find("layers.1.");
        if ((layer != std::string::npos) != (world.rank() == 1)) continue;
        own.insert(layer == std::string::npos ? name : std::string(name).replace(layer, 9, "layers.0."), tensor);
      }
      auto const found = checkpoint::get_full_state_dict(
          world, own, {.pp_rank = world.rank(), .pp = 2},
          {.model = described(backward ? RuleDirection::backward : RuleDirection::forward)});
      if (world.rank() == 0) {
        EXPECT_EQ(difference(bytes_of(expected), bytes_of(found)), "");
      }
    });
  }
}

TEST_F(FusedNames, reshard_for_tensor_parallel_ranks_and_back) {
  write_rules(fused_rules());
  auto const megatron = fused_model();
  auto const separate = translated(megatron, RuleDirection::forward);
  run_thread_ranks(4, [&](Collective const& world) {
    auto const tp_rank = world.rank() % 2;
    Placements const to{.tp_rank = tp_rank, .tp = 2};
    auto const own = checkpoint::reshard(world, world.rank() == 0 ? separate : StateDict(), {}, to,
                                         {.model = described(RuleDirection::backward)});
    auto const rows = [&](std::string const& name, std::int64_t begin, std::int64_t count) {
      return megatron.at(name).narrow(0, begin, count);
    };
    for (std::string const suffix : {".weight", ".bias"}) {
      auto const one_head = rows(attention + suffix, 16 * tp_rank, 16);
      EXPECT_TRUE(std::ranges::equal(own.at(attention + suffix).bytes(), one_head.bytes()));
      auto const& halves = own.at(feed_forward + suffix);
      ASSERT_EQ(halves.shape()[0], 24);
      for (int part = 0; part < 2; ++part) {
        auto const half = rows(feed_forward + suffix, 24 * part + 12 * tp_rank, 12);
        EXPECT_TRUE(std::ranges::equal(halves.narrow(0, 12 * part, 12).bytes(), half.bytes()));
      }
    }
    // Each piece over two ranks.
    auto sharded = to;
    sharded.otherwise.placements = {Shard{0}};
    auto const pieces = checkpoint::reshard(world, world.rank() == 0 ? separate : StateDict(), {}, sharded,
                                            {.model = described(RuleDirection::backward)});
    auto const back =
        checkpoint::get_full_state_dict(world, pieces, sharded, {.model = described(RuleDirection::forward)});
    if (world.rank() == 0) {
      EXPECT_EQ(difference(bytes_of(separate), bytes_of(back)), "");
    }
  });
}

// A rank gets a part of a group's queries and a replica of its key and value.
TEST_F(FusedNames, reshard_for_more_ranks_than_key_value_heads) {
  auto const megatron = fused_model();
  auto const& fused = megatron.at(std::string(attention) + ".weight");
  write_rules(fused_rules());
  auto const separate = translated(megatron, RuleDirection::forward);
  run_thread_ranks(4, [&](Collective const& world) {
    auto const own = checkpoint::reshard(world, separate, {}, {.tp_rank = world.rank(), .tp = 4},
                                         {.model = described(RuleDirection::backward)});
    auto const& found = own.at(std::string(attention) + ".weight");
    ASSERT_EQ(found.shape(), (Shape{12, 16}));
    auto const group = world.rank() / 2 * 16;
    EXPECT_TRUE(
        std::ranges::equal(found.narrow(0, 0, 4).bytes(), fused.narrow(0, group + world.rank() % 2 * 4, 4).bytes()));
    EXPECT_TRUE(std::ranges::equal(found.narrow(0, 4, 8).bytes(), fused.narrow(0, group + 8, 8).bytes()));
  });
  // Numbers do not tell which of the parts ranks may share.
  write_rules(fused_rules("8, 4, 4"));
  auto const errors = test::try_thread_ranks(4, [&](Collective const& world) {
    EXPECT_THROW((void)checkpoint::reshard(world, separate, {}, {.tp_rank = world.rank(), .tp = 4},
                                           {.model = described(RuleDirection::backward)}),
                 UsageError);
  });
  for (auto const& error : errors) EXPECT_EQ(test::text_of(error), "");
}

TEST_F(FusedNames, reshard_layers_that_only_the_rule_file_knows) {
  write_rules(
      R"({"rules": [{"layer": "trainer.*.both", "sharding": "column", "parts": [1, 2], "rename": ["a.*", "b.*"]}]})");
  StateDict const separate{{"a.7.weight", Tensor::of<float>({0, 1}, {2, 1})},
                           {"b.7.weight", Tensor::of<float>({2, 3, 4, 5}, {4, 1})}};
  run_thread_ranks(2, [&](Collective const& world) {
    auto const own = checkpoint::reshard(world, separate, {}, {.tp_rank = world.rank(), .tp = 2},
                                         {.model = described(RuleDirection::backward)});
    std::vector<float> const expected = world.rank() == 0 ? std::vector<float>{0, 2, 3} : std::vector<float>{1, 4, 5};
    EXPECT_THAT(own.at("trainer.7.both.weight").as<float>(), testing::ElementsAreArray(expected));
  });
}

TEST_F(FusedNames, of_quantized_layers_move_the_scales_of_rows_and_blocks) {
  write_rules(fused_rules());
  std::mt19937 random(6);
  auto const scaled = [&](std::string const& suffix, std::int64_t per_row, std::int64_t columns) {
    StateDict weights;
    for (auto const& [layer, rows] : {std::pair(attention, 32), std::pair(feed_forward, 48)}) {
      weights.insert(std::string(layer) + ".weight", test::random_tensor(random, {rows, 16}, Dtype::f8_e4m3));
      weights.insert(layer + suffix, test::random_tensor(random, {rows / per_row, columns}, Dtype::f32));
    }
    return weights;
  };
  config_["num_hidden_layers"] = 1;
  auto const by_row = scaled(".weight_scale", 1, 1);
  auto const rows = translated(by_row, RuleDirection::forward);
  EXPECT_EQ(rows.at("model.layers.0.self_attn.k_proj.weight_scale").shape(), (Shape{8, 1}));
  EXPECT_EQ(difference(bytes_of(by_row), bytes_of(translated(rows, RuleDirection::backward))), "");

  config_["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {4, 4}}};
  auto const by_block = scaled(".weight_scale_inv", 4, 4);
  auto const blocks = translated(by_block, RuleDirection::forward);
  EXPECT_EQ(blocks.at("model.layers.0.self_attn.k_proj.weight_scale_inv").shape(), (Shape{2, 4}));
  EXPECT_EQ(difference(bytes_of(by_block), bytes_of(translated(blocks, RuleDirection::backward))), "");

  // The keys of a head have 4 rows, half of a block.
  config_["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {8, 4}}};
  StateDict wide;
  for (auto const& [part, count] : {std::pair("q", 16), std::pair("k", 8), std::pair("v", 8)}) {
    auto const name = "model.layers.0.self_attn." + std::string(part) + "_proj.weight";
    wide.insert(name, test::random_tensor(random, {count, 16}, Dtype::f8_e4m3));
    wide.insert(name + "_scale_inv", test::random_tensor(random, {count / 8, 4}, Dtype::f32));
  }
  EXPECT_THAT(refusal(wide), AllOf(HasSubstr("model.layers.0.self_attn."), HasSubstr("multiples of 8 outputs")));
}

/// A change that makes weights impossible to fuse, and words of the error.
struct MalformedFusion {
  char const* name;
  std::function<void(StateDict&)> spoil;
  std::vector<std::string> words;
  char const* attention = R"("query", "key_value", "kv_values")";
};

class MalformedFusions : public FusedNames, public testing::WithParamInterface<MalformedFusion> {};

TEST_P(MalformedFusions, are_a_typed_error_on_all_ranks) {
  write_rules(fused_rules(GetParam().attention));
  auto weights = translated(fused_model(), RuleDirection::forward);
  GetParam().spoil(weights);

  auto const text = refusal(weights);

  for (auto const& word : GetParam().words) EXPECT_THAT(text, HasSubstr(word));
}

/// Replaces a tensor of the first layer by zeros.
auto replace_by(std::string const& name, Shape const& shape, Dtype dtype = Dtype::bf16) {
  return [=](StateDict& weights) { weights.insert_or_assign("model.layers.0." + name, Tensor::zeros(shape, dtype)); };
}

auto without(std::string const& name) {
  return [=](StateDict& weights) { weights.erase("model.layers.0." + name); };
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, MalformedFusions,
    testing::Values(
        MalformedFusion{"part_missing",
                        without("self_attn.k_proj.weight"),
                        {"\"model.layers.0.self_attn.k_proj.weight\" is missing", "linear_qkv.weight"}},
        MalformedFusion{
            "bias_missing", without("mlp.up_proj.bias"), {"\"model.layers.0.mlp.up_proj.bias\" is missing"}},
        MalformedFusion{"rows_of_another_length_than_the_config_gives",
                        replace_by("self_attn.k_proj.weight", {12, 16}),
                        {"model.layers.0.self_attn.k_proj.weight", "expected 2 times 4, got 12"}},
        MalformedFusion{"groups_that_do_not_divide",
                        replace_by("self_attn.q_proj.weight", {18, 16}),
                        {"model.layers.0.self_attn.q_proj.weight", "expected 2 times 8, got 18"},
                        "8, 4, 4"},
        MalformedFusion{"dtype",
                        replace_by("self_attn.v_proj.weight", {8, 16}, Dtype::f32),
                        {"model.layers.0.self_attn.v_proj.weight", "F32 [8, 16]"}},
        MalformedFusion{"columns",
                        replace_by("mlp.up_proj.weight", {24, 8}),
                        {"model.layers.0.mlp.up_proj.weight", "BF16 [24, 8]"}},
        MalformedFusion{"one_scale_for_a_layer",
                        [](StateDict& weights) {
                          for (auto const* const part : {"gate", "up"}) {
                            replace_by("mlp." + std::string(part) + "_proj.weight", {24, 16}, Dtype::f8_e4m3)(weights);
                            replace_by("mlp." + std::string(part) + "_proj.weight_scale", {1}, Dtype::f32)(weights);
                          }
                        },
                        {"weight_scale", "cannot become a part of a fused layer"}},
        MalformedFusion{
            "name_of_another_tensor",
            [](StateDict& weights) {
              weights.insert("decoder.layers.0.mlp.linear_fc1.weight", Tensor::zeros({48, 16}, Dtype::bf16));
            },
            {"decoder.layers.0.mlp.linear_fc1.weight"}}),
    [](auto const& tested) { return std::string(tested.param.name); });

TEST_F(FusedNames, need_a_pattern_that_tells_the_name) {
  write_rules(R"({"rules": [{"layer": "**.both", "sharding": "column", "parts": [1, 1], "rename": ["a", "b"]}]})");
  EXPECT_THAT(refusal({{"a.weight", Tensor::zeros({2, 2}, Dtype::f32)}}),
              AllOf(HasSubstr("rule 0 cannot translate names backward"), HasSubstr("**.both")));
}

}  // namespace
}  // namespace crossrank
