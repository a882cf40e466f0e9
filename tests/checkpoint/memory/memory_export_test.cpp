// Weights in the memory of several ranks become one checkpoint.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/checkpoint/memory/exchange/export_buffers.hpp"

namespace crossrank {
namespace {

using checkpoint::consolidate;
using test::bytes_of;
using test::difference;
using test::part_of;
using test::read_checkpoint;
using test::run_thread_ranks;
using test::ShardedModel;
using test::TemporaryDirectory;

/// Exports a model and returns the checkpoint.
test::ModelBytes exported(ShardedModel const& model, int ranks, checkpoint::ExportOptions const& options = {}) {
  TemporaryDirectory const folder;
  run_thread_ranks(ranks, [&](Collective const& world) {
    auto const part = part_of(model, world.rank(), ranks);
    (void)consolidate(world, part.weights, part.placements, folder.path() / "out", options);
  });
  return read_checkpoint(folder.path() / "out", false);
}

class RandomPlacements : public testing::TestWithParam<int> {};

TEST_P(RandomPlacements, give_the_whole_model) {
  for (unsigned round = 0; round < 8; ++round) {
    auto const seed = static_cast<unsigned>(GetParam()) * 1000 + round;
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto const model = test::random_model(seed, GetParam());

    auto const found = exported(model, GetParam(), {.max_shard_bytes = round % 2 == 0 ? 300U : 5'000'000U});

    EXPECT_EQ(difference(bytes_of(model), found), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomPlacements, testing::Values(1, 2, 3, 4, 5));

TEST_P(RandomPlacements, give_the_model_to_one_rank_or_in_another_layout) {
  for (unsigned round = 0; round < 3; ++round) {
    auto const seed = static_cast<unsigned>(GetParam()) * 2000 + round;
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto const model = test::random_model(seed, GetParam());
    // The same tensors, sharded in another way.
    auto other = model;
    std::mt19937 random(seed);
    for (auto& [name, tensor] : other) {
      tensor.placement = {};
      auto const dims = static_cast<std::int64_t>(tensor.whole.shape().size());
      if (dims > 1) tensor.placement.placements = {checkpoint::Shard{static_cast<std::int64_t>(random()) % (dims - 1)}};
    }
    run_thread_ranks(GetParam(), [&](Collective const& world) {
      auto const part = part_of(model, world.rank(), GetParam());
      auto const wanted = part_of(other, world.rank(), GetParam());
      int const dst = GetParam() - 1;

      auto const full = checkpoint::get_full_state_dict(world, part.weights, part.placements, {.dst = dst});
      auto const resharded = checkpoint::reshard(world, part.weights, part.placements, wanted.placements);

      EXPECT_EQ(difference(world.rank() == dst ? bytes_of(model) : test::ModelBytes(), bytes_of(full)), "");
      EXPECT_EQ(difference(bytes_of(wanted.weights), bytes_of(resharded)), "");
    });
  }
}

TEST(MemoryExport, sums_partial_values) {
  checkpoint::TensorPlacement const partial{.placements = {checkpoint::Partial{}, checkpoint::Shard{0}},
                                            .mesh = {.shape = {2, 2}}};
  TemporaryDirectory const folder;
  run_thread_ranks(4, [&](Collective const& world) {
    auto const at = static_cast<float>(world.rank());
    StateDict const weights{{"w", Tensor::of<float>({at, 10 * at}, {2, 1})}};
    (void)consolidate(world, weights, {.otherwise = partial}, folder.path() / "out");
  });
  // Ranks 0 and 2 have the first two rows, ranks 1 and 3 the others.
  StateDict const expected{{"w", Tensor::of<float>({2, 20, 4, 40}, {4, 1})}};
  EXPECT_EQ(difference(bytes_of(expected), read_checkpoint(folder.path() / "out", false)), "");
}

TEST(MemoryExport, joins_flattened_and_padded_tensors) {
  auto const whole = Tensor::of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 2});
  TemporaryDirectory const folder;
  run_thread_ranks(3, [&](Collective const& world) {
    auto const rank = world.rank();
    checkpoint::Placements placements;
    placements.tensors["flat"] = {.shape = Shape{5, 2}, .first_element = rank * 4};
    placements.tensors["padded"] = {.placements = {checkpoint::Shard{0}}, .shape = Shape{5, 2}};
    StateDict weights;
    auto flat = Tensor::zeros({4}, Dtype::f32);
    for (int i = 0; i < 4 && rank * 4 + i < 10; ++i)
      flat.as_mutable<float>()[as_size(i)] = static_cast<float>(rank * 4 + i);
    weights.insert("flat", flat);
    weights.insert("padded", flat.reshape({2, 2}));
    (void)consolidate(world, weights, placements, folder.path() / "out");
  });
  StateDict const expected{{"flat", whole}, {"padded", whole}};
  EXPECT_EQ(difference(bytes_of(expected), read_checkpoint(folder.path() / "out", false)), "");
}

TEST(MemoryExport, accepts_replicas_that_are_flattened_over_ranks_in_another_order) {
  run_thread_ranks(4, [&](Collective const& world) {
    // Ranks 0 and 1 are one tensor-parallel rank, 2 and 3 the other one.
    bool const first_half = world.rank() == 0 || world.rank() == 3;
    checkpoint::Placements const placements{
        .tp_rank = world.rank() / 2, .tp = 2, .otherwise = {.shape = Shape{6}, .first_element = first_half ? 0 : 3}};
    StateDict weights;
    weights.insert("model.norm.weight",
                   first_half ? Tensor::of<float>({0, 1, 2}, {3}) : Tensor::of<float>({3, 4, 5}, {3}));
    auto const whole = checkpoint::get_full_state_dict(world, weights, placements);
    if (world.rank() == 0) {
      StateDict const expected{{"model.norm.weight", Tensor::of<float>({0, 1, 2, 3, 4, 5}, {6})}};
      EXPECT_EQ(difference(bytes_of(expected), bytes_of(whole)), "");
    }
  });
}

TEST(MemoryExport, writes_torch_archives_and_single_files_and_reads_them_back) {
  std::mt19937 random(7);
  ShardedModel model;
  model["a"] = {test::random_tensor(random, {7, 16}, Dtype::f32), {.placements = {checkpoint::Shard{0}}}};
  model["b"] = {test::random_tensor(random, {4, 9}, Dtype::bf16), {.placements = {checkpoint::Shard{1}}}};
  model["c"] = {test::random_tensor(random, {30}, Dtype::u8), {}};
  for (auto const format : {checkpoint::OutputFormat::safetensors, checkpoint::OutputFormat::torch}) {
    for (bool const single_file : {false, true}) {
      bool const is_torch = format == checkpoint::OutputFormat::torch;
      SCOPED_TRACE(testing::Message() << "torch " << is_torch << ", single file " << single_file);
      TemporaryDirectory const folder;
      auto const out = folder.path() / "out";
      run_thread_ranks(2, [&](Collective const& world) {
        auto const part = part_of(model, world.rank(), 2);
        (void)consolidate(world, part.weights, part.placements, out,
                          {.max_shard_bytes = 300,
                           .single_file = single_file,
                           .format = format,
                           .read_back = checkpoint::ReadBack::all});
      });
      auto const* const single = is_torch ? "pytorch_model.bin" : "model.safetensors";
      EXPECT_EQ(std::filesystem::exists(out / single), single_file);
      EXPECT_EQ(difference(bytes_of(model), test::read_any_checkpoint(out)), "");
    }
  }
}

TEST(MemoryExport, keeps_infinity_in_the_config) {
  TemporaryDirectory const folder;
  Json const config{{"time_step_limit", {0.0, std::numeric_limits<double>::infinity()}}};
  run_thread_ranks(2, [&](Collective const& world) {
    (void)consolidate(world, {{"w", Tensor::zeros({2}, Dtype::f32)}}, {}, folder.path() / "out",
                      {.model = {.config = config}});
  });
  std::ifstream file(folder.path() / "out" / "config.json");
  std::string const text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find("Infinity"), std::string::npos) << text;
}

/// A small Llama in Hugging Face's names.
StateDict small_llama() {
  std::mt19937 random(3);
  StateDict weights;
  auto const add = [&](std::string const& name, Shape const& shape) {
    weights.insert(name, test::random_tensor(random, shape, Dtype::bf16));
  };
  add("model.embed_tokens.weight", {32, 16});
  for (std::string const layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "self_attn.q_proj.weight", {16, 16});
    add(layer + "self_attn.k_proj.weight", {8, 16});
    add(layer + "self_attn.v_proj.weight", {8, 16});
    add(layer + "self_attn.o_proj.weight", {16, 16});
    add(layer + "mlp.gate_proj.weight", {24, 16});
    add(layer + "mlp.up_proj.weight", {24, 16});
    add(layer + "mlp.down_proj.weight", {16, 24});
    add(layer + "input_layernorm.weight", {16});
    add(layer + "post_attention_layernorm.weight", {16});
  }
  add("model.norm.weight", {16});
  add("lm_head.weight", {32, 16});
  return weights;
}

Json llama_config() {
  return {{"model_type", "llama"},       {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 16},           {"intermediate_size", 24},
          {"num_attention_heads", 4},    {"num_key_value_heads", 2},
          {"num_hidden_layers", 2},      {"vocab_size", 32},
          {"max_position_embeddings", 8}};
}

TEST(MemoryExport, equals_the_merge_of_the_same_shards_from_files) {
  auto const whole = small_llama();
  TemporaryDirectory const folder;
  run_thread_ranks(4, [&](Collective const& world) {
    auto const rank = world.rank();
    checkpoint::ModelDescription const model{.config = llama_config()};
    checkpoint::Placements const from_first{};
    StateDict const none;
    // Two tensor-parallel ranks, each sharded over two ranks.
    checkpoint::Placements const to{.tp_rank = rank % 2, .tp = 2, .otherwise = {.placements = {checkpoint::Shard{0}}}};
    auto const own = checkpoint::reshard(world, rank == 0 ? whole : none, from_first, to, {.model = model});
    checkpoint::Placements const unsharded{.tp_rank = rank % 2, .tp = 2};
    auto const shard = checkpoint::reshard(world, rank == 0 ? whole : none, from_first, unsharded, {.model = model});
    EXPECT_EQ(shard.at("model.layers.0.mlp.down_proj.weight").shape(), (Shape{16, 12}));
    EXPECT_EQ(own.at("model.layers.0.mlp.down_proj.weight").shape(), (Shape{8, 12}));

    auto const summary =
        consolidate(world, own, to, folder.path() / "memory", {.model = model, .max_shard_bytes = 3000});

    EXPECT_GT(summary.files, 3);
    auto const pair = world.split({{0, 1}});
    if (rank > 1) return;
    (void)checkpoint::save_sharded(pair, shard, folder.path() / "shards", {.config = llama_config()});
    auto const plan = checkpoint::MergePlan::make(pair, folder.path() / "shards", {.tp = 2});
    (void)consolidate(pair, plan, folder.path() / "files", {.max_shard_bytes = 3000});
  });
  auto const names = test::names_in(folder.path() / "files");
  EXPECT_EQ(test::names_in(folder.path() / "memory"), names);
  for (auto const& name : names) {
    if (name == "config.json") continue;
    EXPECT_EQ(test::text_of_file(folder.path() / "memory" / name), test::text_of_file(folder.path() / "files" / name))
        << name;
  }
  EXPECT_EQ(difference(bytes_of(whole), read_checkpoint(folder.path() / "memory", true)), "");
}

/// Tensor-parallel ranks with equal names and shapes share one description of them, but not the values: ids that start
/// at 0 on each rank grow from rank to rank, and ids that continue stay.
TEST(MemoryExport, reads_values_that_rules_need_from_the_rank_that_holds_them) {
  constexpr std::int32_t inputs = 256;  // of each rank
  constexpr std::int32_t group = 64;
  std::string const layer = "model.layers.0.mlp.down_proj.";
  Json config = llama_config();
  config["num_hidden_layers"] = 1;
  config["hidden_size"] = 256;
  config["intermediate_size"] = 2 * inputs;
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", group}};
  for (std::int32_t const first_of_second : {0, inputs / group}) {
    StateDict merged;
    run_thread_ranks(2, [&](Collective const& world) {
      std::vector<std::int32_t> ids;
      for (std::int32_t i = 0; i < inputs; ++i) ids.push_back(i / group + world.rank() * first_of_second);
      StateDict const weights{{layer + "g_idx", Tensor::of(ids, {inputs})},
                              {layer + "qweight", Tensor::zeros({inputs / 8, 256}, Dtype::i32)},
                              {layer + "qzeros", Tensor::zeros({inputs / group, 32}, Dtype::i32)},
                              {layer + "scales", Tensor::zeros({inputs / group, 256}, Dtype::f16)}};
      auto const all = checkpoint::get_full_state_dict(world, weights, {.tp_rank = world.rank(), .tp = 2},
                                                       {.model = {.config = config}});
      if (world.rank() == 0) merged = all;
    });
    auto const ids = merged.at(layer + "g_idx").as<std::int32_t>();
    ASSERT_EQ(ids.size(), as_size(2 * inputs));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ASSERT_EQ(ids[i], static_cast<std::int32_t>(i) / group) << "entry " << i << ", from " << first_of_second;
  }
}

TEST(MemoryExport, translates_names_in_both_directions) {
  TemporaryDirectory const folder;
  std::ofstream(folder.path() / "rules.json")
      << R"({"rules": [{"tensor": "decoder.layers.*.norm.weight", "sharding": "replicate", "rename": "model.layers.*.ln.weight"}]})";
  auto const value = Tensor::of<float>({1, 2}, {2});
  run_thread_ranks(2, [&](Collective const& world) {
    checkpoint::ModelDescription model{.rules = folder.path() / "rules.json"};
    StateDict const megatron{{"decoder.layers.3.norm.weight", value}};
    StateDict const huggingface{{"model.layers.3.ln.weight", value}};

    auto const forward = checkpoint::get_full_state_dict(world, megatron, {}, {.model = model});
    model.direction = checkpoint::RuleDirection::backward;
    auto const backward = checkpoint::get_full_state_dict(world, huggingface, {}, {.model = model});

    if (world.rank() != 0) return;
    EXPECT_EQ(difference(bytes_of(huggingface), bytes_of(forward)), "");
    EXPECT_EQ(difference(bytes_of(megatron), bytes_of(backward)), "");
  });
}

TEST(MemoryExport, renames_layers_of_stages_that_count_from_zero) {
  TemporaryDirectory const folder;
  std::ofstream(folder.path() / "rules.json")
      << R"({"rules": [{"layer": "decoder.layers.*.fc", "sharding": "column", "rename": "model.layers.*.proj"},
  {"layer": "decoder.layers.*.both", "sharding": "column", "parts": [1, 1], "rename": ["model.layers.*.a", "model.layers.*.b"]}]})";
  run_thread_ranks(2, [&](Collective const& world) {
    auto const at = static_cast<float>(world.rank());
    StateDict const weights{{"decoder.layers.0.fc.weight", Tensor::of<float>({at}, {1, 1})},
                            {"decoder.layers.0.both.weight", Tensor::of<float>({2 + at, 4 + at}, {2, 1})}};
    auto const found = checkpoint::get_full_state_dict(world, weights, {.pp_rank = world.rank(), .pp = 2},
                                                       {.model = {.rules = folder.path() / "rules.json"}});
    if (world.rank() != 0) return;
    StateDict const expected{{"model.layers.0.proj.weight", Tensor::of<float>({0}, {1, 1})},
                             {"model.layers.0.a.weight", Tensor::of<float>({2}, {1, 1})},
                             {"model.layers.0.b.weight", Tensor::of<float>({4}, {1, 1})},
                             {"model.layers.1.proj.weight", Tensor::of<float>({1}, {1, 1})},
                             {"model.layers.1.a.weight", Tensor::of<float>({3}, {1, 1})},
                             {"model.layers.1.b.weight", Tensor::of<float>({5}, {1, 1})}};
    EXPECT_EQ(difference(bytes_of(expected), bytes_of(found)), "");
  });
}

TEST(MemoryExport, logs_the_warnings_of_its_plan_once) {
  TemporaryDirectory const folder;
  std::ofstream(folder.path() / "rules.json")
      << R"({"rules": [{"tensor": "no.such.tensor", "sharding": "replicate"}]})";
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) {
    std::lock_guard const lock(mutex);
    if (event.level == LogLevel::warning) warnings.emplace_back(event.message);
  });
  run_thread_ranks(3, [&](Collective const& world) {
    StateDict const weights{{"w", Tensor::of<float>({1, 2}, {2})}};
    (void)consolidate(world, weights, {}, folder.path() / "out", {.model = {.rules = folder.path() / "rules.json"}});
  });
  set_log_sink({});
  EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr("no.such.tensor")));
}

TEST(MemoryExport, logs_few_warnings_of_a_kind_and_their_number) {
  constexpr int layers = 100;
  StateDict weights;
  for (int i = 0; i < layers; ++i)
    weights.insert("model.layers." + std::to_string(i) + ".mlp.gate_proj.weight", Tensor::of<float>({1, 2}, {2, 1}));
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) {
    for (auto const& field : event.fields) warnings.push_back(std::string(field.key) + " " + std::string(field.value));
  });
  run_thread_ranks(1, [&](Collective const& world) { (void)checkpoint::get_full_state_dict(world, weights, {}); });
  set_log_sink({});
  EXPECT_THAT(warnings, testing::SizeIs(21));
  EXPECT_THAT(warnings, testing::Contains("more tensors 80"));
}

// Rules sample the values of embeddings and heads. The whole tensors are too large to send to all ranks.
TEST(MemoryExport, sends_samples_of_large_tensors_that_rules_compare) {
  TemporaryDirectory const folder;
  constexpr std::int64_t rows = 20'480;
  constexpr std::int64_t columns = 1024;
  std::mt19937 random(11);
  auto const noise = test::random_tensor(random, {rows / 2, columns}, Dtype::bf16);
  Json config = llama_config();
  config["hidden_size"] = columns;
  config["vocab_size"] = rows;
  config["tie_word_embeddings"] = true;
  run_thread_ranks(2, [&](Collective const& world) {
    StateDict weights;
    for (auto const* const name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      auto own = noise.clone();
      own.mutable_bytes()[0] = static_cast<std::byte>(world.rank());
      weights.insert(name, own);
    }
    (void)consolidate(world, weights, {.tp_rank = world.rank(), .tp = 2}, folder.path() / "out",
                      {.model = {.config = config}});
  });
  SafetensorsFile const made(folder.path() / "out" / "model.safetensors");
  ASSERT_EQ(made.entries().size(), 1U) << "the head is tied to the embedding";
  auto const embedding = made.read("model.embed_tokens.weight");
  EXPECT_EQ(embedding.shape(), (Shape{rows, columns}));
  EXPECT_EQ(embedding.bytes()[noise.nbytes()], std::byte{1});
  EXPECT_TRUE(std::equal(noise.bytes().begin() + 1, noise.bytes().end(), embedding.bytes().begin() + 1));
}

TEST(MemoryExport, of_ranks_with_different_tensors_finds_each_once) {
  // Ranks 0 and 1 have the same names, ranks 2 and 3 have other ones, and all hold "shared".
  TemporaryDirectory const folder;
  StateDict expected{{"shared", Tensor::of<float>({9, 8}, {2})}};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 5; ++i)
      expected.insert("layers." + std::to_string(5 * half + i) + ".w",
                      Tensor::of<float>({static_cast<float>(half), static_cast<float>(i)}, {2}));
  }
  run_thread_ranks(4, [&](Collective const& world) {
    int const half = world.rank() / 2;
    StateDict weights{{"shared", expected.at("shared")}};
    checkpoint::Placements placements{.tensors = {{"shared", {.mesh = {.ranks = {0, 1, 2, 3}}}}}};
    placements.otherwise = {.placements = {checkpoint::Shard{0}}, .mesh = {.ranks = {2 * half, 2 * half + 1}}};
    for (int i = 0; i < 5; ++i) {
      auto const name = "layers." + std::to_string(5 * half + i) + ".w";
      weights.insert(name, expected.at(name).narrow(0, world.rank() % 2, 1));
    }
    (void)consolidate(world, weights, placements, folder.path() / "out");
  });
  EXPECT_EQ(difference(bytes_of(expected), read_checkpoint(folder.path() / "out", false)), "");
}

TEST(MemoryExport, works_between_hosts) {
  auto const model = test::random_model(77, 4);
  for (bool const node_memory : {false, true}) {
    TemporaryDirectory const folder;
    test::run_message_ranks(4,
                            [&](Collective const& world, test::MemoryHub&) {
                              auto const part = part_of(model, world.rank(), 4);
                              (void)consolidate(world, part.weights, part.placements, folder.path() / "out",
                                                {.max_shard_bytes = 500});
                            },
                            {.node_memory = node_memory});
    EXPECT_EQ(difference(bytes_of(model), read_checkpoint(folder.path() / "out", false)), "");
  }
}

// A round has a limited number of items, so these tensors need several rounds.
TEST(MemoryExport, gives_thousands_of_small_tensors) {
  constexpr int count = 3000;
  constexpr int ranks = 4;
  TemporaryDirectory const folder;
  run_thread_ranks(ranks, [&](Collective const& world) {
    StateDict weights;
    for (int i = 0; i < count; ++i) {
      auto const value = static_cast<float>(i * ranks + world.rank());
      weights.insert("w." + std::to_string(i), Tensor::of<float>({value}, {1}));
    }
    (void)consolidate(world, weights, {.otherwise = {.placements = {checkpoint::Shard{0}}}}, folder.path() / "out");
  });
  auto const written = load_safetensors(folder.path() / "out" / "model.safetensors");
  ASSERT_EQ(written.size(), std::size_t{count});
  for (int i = 0; i < count; ++i) {
    auto const first = static_cast<float>(i * ranks);
    EXPECT_THAT(written.at("w." + std::to_string(i)).as<float>(),
                testing::ElementsAre(first, first + 1, first + 2, first + 3));
  }
}

TEST(MemoryExport, needs_less_than_256_MiB_beside_the_weights) {
  // Rows of all ranks alternate, so every block is put together.
  constexpr std::int64_t rows = 1024;
  constexpr std::int64_t columns = 48 * 1024;
  TemporaryDirectory const folder;
  run_thread_ranks(4, [&](Collective const& world) {
    StateDict const weights{{"w", Tensor::zeros({rows, columns}, Dtype::u8)}};
    auto const summary =
        consolidate(world, weights, {.otherwise = {.placements = {checkpoint::Shard{1}}}}, folder.path() / "out");
    EXPECT_GE(summary.bytes, std::uint64_t{4} * rows * columns);
  });
  // Two sets of buffers, and a slice for each of four threads.
  auto const max = 2 * checkpoint::ExportBuffers::process_peak_bytes() + (std::size_t{4} * 8 << 20);
  EXPECT_LE(max, std::size_t{256} << 20);
  EXPECT_GT(max, std::size_t{8} << 20);
}

TEST(MemoryExport, continues_in_the_background_while_the_weights_change) {
  TemporaryDirectory const folder;
  auto const whole = Tensor::of<float>({1, 2, 3, 4}, {4});
  run_thread_ranks(2, [&](Collective const& world) {
    auto own = Tensor::of<float>(
        {1.0F + 2.0F * static_cast<float>(world.rank()), 2.0F + 2.0F * static_cast<float>(world.rank())}, {2});
    StateDict weights{{"w", std::move(own)}};
    checkpoint::Placements const sharded{.otherwise = {.placements = {checkpoint::Shard{0}}}};

    auto request = checkpoint::iconsolidate(world, weights, sharded, folder.path() / "out");
    for (auto& value : weights.at("w").as_mutable<float>()) value = -1;
    world.barrier();
    auto const summary = request.wait();

    EXPECT_EQ(summary.files, 1);
    EXPECT_TRUE(request.done());
    EXPECT_THROW((void)checkpoint::iconsolidate(world, weights, sharded, folder.path() / "out", {.max_copy_bytes = 1}),
                 UnavailableError);
    auto again = checkpoint::iconsolidate(world, weights, sharded, folder.path() / "out");
    EXPECT_THROW((void)again.wait(), UsageError) << "the output exists";
  });
  StateDict const expected{{"w", whole}};
  EXPECT_EQ(difference(bytes_of(expected), read_checkpoint(folder.path() / "out", false)), "");
}

TEST(MemoryExport, in_the_background_writes_to_the_directory_of_the_call) {
  TemporaryDirectory const folder;
  auto const before = std::filesystem::current_path();
  std::filesystem::create_directory(folder.path() / "elsewhere");
  std::filesystem::current_path(folder.path());
  auto const world = connect({.backend = "fake"});
  StateDict const weights{{"w", Tensor::zeros({2}, Dtype::f32)}};
  auto request = checkpoint::iconsolidate(world, weights, {}, "out");
  std::filesystem::current_path(folder.path() / "elsewhere");
  (void)request.wait();
  std::filesystem::current_path(before);
  EXPECT_EQ(read_checkpoint(folder.path() / "out", false).size(), 1U);
}

TEST(MemoryExport, accepts_placements_of_tensors_of_other_ranks) {
  TemporaryDirectory const folder;
  run_thread_ranks(2, [&](Collective const& world) {
    // Each pipeline stage passes the placements of the whole model.
    checkpoint::Placements const placements{.pp_rank = world.rank(), .pp = 2, .tensors = {{"a", {}}, {"b", {}}}};
    StateDict const weights{{world.rank() == 0 ? "a" : "b", Tensor::zeros({2}, Dtype::f32)}};
    (void)consolidate(world, weights, placements, folder.path() / "out");
  });
  EXPECT_EQ(read_checkpoint(folder.path() / "out", false).size(), 2U);
}

}  // namespace
}  // namespace crossrank
