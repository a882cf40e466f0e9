// A model in one file gives the same result as the same model in shards.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/support/torch_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using checkpoint::MergePlan;
using checkpoint::TorchFile;
using codec::pickled;

bool same(Tensor const& a, Tensor const& b) {
  return a.shape() == b.shape() && std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

class SingleSource : public testing::Test {
 protected:
  [[nodiscard]] StateDict merged(fs::path const& shards, checkpoint::PlanOptions const& options = {}) {
    auto const out = folder_.path() / ("out" + std::to_string(merged_++));
    (void)checkpoint::consolidate(world_, MergePlan::make(world_, shards, options), out);
    return load_safetensors(out / "model.safetensors");
  }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
  int merged_ = 0;
};

TEST_F(SingleSource, follows_the_rule_file) {
  std::vector<float> values(16 * 4);
  std::iota(values.begin(), values.end(), 0.0F);
  auto const table = Tensor::of<float>(values, {16, 4});
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"layer": "a.*.w", "sharding": "column", "replicas": 1, "rename": "m.*.x"},
                                        {"layer": "h", "sharding": "drop"},
                                        {"layer": "v", "sharding": "vocabulary", "true_size": 12},
                                        {"tensor": "t", "axis": 0, "true_size": 11, "rename": "u"},
                                        {"tensor": "s", "sharding": "reduce", "rename": "z"}]})";
  for (int const ranks : {1, 2}) {
    auto const shards = folder_.path() / std::to_string(ranks);
    fs::create_directories(shards);
    for (int rank = 0; rank < ranks; ++rank) {
      auto const mine = slice(table, Dim{0}, 16 / ranks * rank, 16 / ranks);
      StateDict const state{
          {"a.1.w.weight", mine}, {"h.weight", table}, {"v.weight", mine}, {"t", mine}, {"s", Tensor::scalar(2.0F)}};
      save_safetensors(shards / ("rank" + std::to_string(rank) + ".safetensors"), state);
    }

    auto const model = merged(shards, {.rules = rules});

    ASSERT_EQ(model.size(), 4U) << ranks;
    EXPECT_TRUE(same(model.at("m.1.x.weight"), table)) << ranks;
    EXPECT_TRUE(same(model.at("v.weight"), slice(table, Dim{0}, 0, 12))) << ranks;
    EXPECT_TRUE(same(model.at("u"), slice(table, Dim{0}, 0, 11))) << ranks;
    EXPECT_EQ(model.at("z").item<float>(), 2.0F) << ranks;
    EXPECT_TRUE(checkpoint::verify(world_, shards, {.rules = rules}).ok()) << ranks;
  }
}

/// Returns the rows of the ranges [begin, end) of a tensor.
Tensor rows_of(Tensor const& tensor, std::vector<std::pair<std::int64_t, std::int64_t>> const& ranges) {
  std::vector<Tensor> parts;
  for (auto const& [begin, end] : ranges) parts.push_back(slice(tensor, Dim{0}, begin, end - begin));
  return concat(parts, {.dim = 0});
}

/// 4 heads and 2 key/value heads of 2 rows, and a feed-forward size of 6, in Megatron's layout.
class FusedLayers : public SingleSource {
 protected:
  void SetUp() override {
    std::vector<float> values(16 * 4);
    std::iota(values.begin(), values.end(), 0.0F);
    fused_ = Tensor::of<float>(values, {16, 4});
    gated_ = slice(fused_, Dim{0}, 0, 12);
  }
  /// Writes the fused layers for a number of ranks, with a config.
  [[nodiscard]] fs::path shards(int ranks) const {
    auto const folder = folder_.path() / std::to_string(ranks);
    fs::remove_all(folder);
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << R"({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
                                                 "hidden_size": 8, "intermediate_size": 6})";
    for (int rank = 0; rank < ranks; ++rank) {
      auto const half = 6 / ranks;
      StateDict const state{{"layers.3.qkv.weight", slice(fused_, Dim{0}, 16 / ranks * rank, 16 / ranks)},
                            {"layers.3.qkv.bias", slice(bias_, Dim{0}, 16 / ranks * rank, 16 / ranks)},
                            {"layers.3.fc1.weight", rows_of(gated_, {{half * rank, half * (rank + 1)},
                                                                     {6 + half * rank, 6 + half * (rank + 1)}})}};
      save_safetensors(folder / ("rank" + std::to_string(rank) + ".safetensors"), state);
    }
    return folder;
  }
  [[nodiscard]] fs::path rules(std::string const& qkv) const {
    auto const file = folder_.path() / "rules.json";
    std::ofstream(file)
        << R"({"rules": [{"layer": "layers.*.qkv", "sharding": "column", "layout": "grouped", "parts": )" << qkv
        << R"(, "rename": ["m.*.q", "m.*.k", "m.*.v"]},
         {"layer": "layers.*.fc1", "sharding": "column", "parts": ["ffn", "ffn"], "rename": ["m.*.gate", "m.*.up"]}]})";
    return file;
  }

  Tensor fused_{};
  Tensor gated_{};
  Tensor bias_ = Tensor::of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {16});
};

TEST_F(FusedLayers, become_layers_by_the_names_in_the_rule_file) {
  for (auto const* const parts : {R"(["query", "key_value", "kv_values"])", "[4, 2, 2]"}) {
    for (int const ranks : {1, 2}) {
      auto const model = merged(shards(ranks), {.rules = rules(parts)});

      ASSERT_EQ(model.size(), 8U) << ranks;
      EXPECT_TRUE(same(model.at("m.3.q.weight"), rows_of(fused_, {{0, 4}, {8, 12}}))) << ranks;
      EXPECT_TRUE(same(model.at("m.3.k.weight"), rows_of(fused_, {{4, 6}, {12, 14}}))) << ranks;
      EXPECT_TRUE(same(model.at("m.3.v.weight"), rows_of(fused_, {{6, 8}, {14, 16}}))) << ranks;
      EXPECT_TRUE(same(model.at("m.3.q.bias"), rows_of(bias_, {{0, 4}, {8, 12}}))) << ranks;
      EXPECT_TRUE(same(model.at("m.3.gate.weight"), slice(gated_, Dim{0}, 0, 6))) << ranks;
      EXPECT_TRUE(same(model.at("m.3.up.weight"), slice(gated_, Dim{0}, 6, 6))) << ranks;
    }
  }
}

TEST_F(FusedLayers, need_the_widths_of_their_parts) {
  auto const folder = shards(1);
  for (auto const* const parts : {R"(["query", "key_value", "linear_key"])", "[5, 2, 2]"})
    EXPECT_THROW((void)merged(folder, {.rules = rules(parts)}), FormatError) << parts;
}

// One of the parts used to be lost.
TEST_F(FusedLayers, need_names_that_differ_once_numbers_are_filled) {
  auto const file = folder_.path() / "same.json";
  std::ofstream(file) << R"({"rules": [{"layer": "layers.*.fc1", "sharding": "column", "parts": ["ffn", "ffn"],
                                        "rename": ["m.*.gate", "m.3.gate"]}]})";
  for (int const ranks : {1, 2}) EXPECT_THROW((void)merged(shards(ranks), {.rules = file}), FormatError) << ranks;
}

TEST_F(SingleSource, is_split_by_its_rename_rule) {
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"layer": "a.*.w", "sharding": "row", "rename": "m.*.x"},
                                        {"tensor": "t", "axis": 1, "rename": "model.norm.weight"}]})";
  StateDict const state{{"a.1.w.weight", Tensor::zeros({6, 4}, Dtype::f32)}, {"t", Tensor::zeros({2, 8}, Dtype::f32)}};
  fs::create_directories(folder_.path() / "in");
  save_safetensors(folder_.path() / "in" / "model.safetensors", state);

  (void)checkpoint::split(world_, MergePlan::make(world_, folder_.path() / "in", {.rules = rules}),
                          folder_.path() / "sharded", {.tp = 2});

  auto const first = load_safetensors(folder_.path() / "sharded" / "rank0.safetensors");
  EXPECT_EQ(first.at("m.1.x.weight").shape(), (Shape{6, 2}));
  EXPECT_EQ(first.at("model.norm.weight").shape(), (Shape{2, 4}));
}

TEST_F(SingleSource, ignores_rules_for_ranks) {
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"layer": "w", "sharding": "column", "replicas": 2, "parts": [1, 1, 1]}]})";
  StateDict const state{{"w.weight", Tensor::zeros({7, 3}, Dtype::f32)}, {"unknown", Tensor::scalar(2.0F)}};
  fs::create_directories(folder_.path() / "in");
  save_safetensors(folder_.path() / "in" / "model.safetensors", state);

  auto const model = merged(folder_.path() / "in", {.rules = rules});

  EXPECT_EQ(model.at("w.weight").shape(), (Shape{7, 3}));
  EXPECT_EQ(model.at("unknown").item<float>(), 2.0F);
}

TEST_F(SingleSource, loses_vocabulary_padding_like_shards) {
  constexpr std::int64_t tokens = 5;
  constexpr std::int64_t padded = 8;
  constexpr std::int64_t hidden = 2;
  std::string const name = "embedding.word_embeddings.weight";
  for (std::int64_t const ranks : {1, 2}) {
    auto const job = folder_.path() / ("job" + std::to_string(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      TorchFile file;
      std::vector<float> rows(as_size(padded / ranks * hidden));
      std::iota(rows.begin(), rows.end(), static_cast<float>(padded / ranks * hidden * rank));
      auto const weight = file.floats(rows, {padded / ranks, hidden});
      TorchFile::Entries const arguments{{"tensor_model_parallel_size", pickled(ranks)},
                                         {"pipeline_model_parallel_size", pickled(1)},
                                         {"hidden_size", pickled(hidden)},
                                         {"vocab_size", pickled(tokens)},
                                         {"padded_vocab_size", pickled(padded)}};
      file.write(job / ("mp_rank_0" + std::to_string(rank)) / "model_optim_rng.pt",
                 checkpoint::dict_of({{"args", checkpoint::arguments_of(arguments)},
                                      {"model", checkpoint::dict_of({{name, weight}})}}));
    }

    auto const weight = merged(job).at(name);

    ASSERT_EQ(weight.shape(), (Shape{tokens, hidden})) << ranks;
    EXPECT_THAT(std::vector<float>(weight.as<float>().begin(), weight.as<float>().end()),
                testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
        << ranks;
  }
}

}  // namespace
}  // namespace crossrank
