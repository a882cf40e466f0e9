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
  std::ofstream(rules) << R"({"rules": [{"layer": "a.*.w", "cut": "column", "replicas": 1, "rename": "m.*.x"},
                                        {"layer": "h", "cut": "drop"},
                                        {"layer": "v", "cut": "vocabulary", "true_size": 12},
                                        {"tensor": "t", "axis": 0, "true_size": 11, "rename": "u"},
                                        {"tensor": "s", "cut": "reduce", "rename": "z"}]})";
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

TEST_F(SingleSource, is_split_by_its_rename_rule) {
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"layer": "a.*.w", "cut": "row", "rename": "m.*.x"},
                                        {"tensor": "t", "axis": 1, "rename": "model.norm.weight"}]})";
  StateDict const state{{"a.1.w.weight", Tensor::zeros({6, 4}, Dtype::f32)}, {"t", Tensor::zeros({2, 8}, Dtype::f32)}};
  fs::create_directories(folder_.path() / "in");
  save_safetensors(folder_.path() / "in" / "model.safetensors", state);

  (void)checkpoint::split(world_, MergePlan::make(world_, folder_.path() / "in", {.rules = rules}),
                          folder_.path() / "cut", {.tp = 2});

  auto const first = load_safetensors(folder_.path() / "cut" / "rank0.safetensors");
  EXPECT_EQ(first.at("m.1.x.weight").shape(), (Shape{6, 2}));
  EXPECT_EQ(first.at("model.norm.weight").shape(), (Shape{2, 4}));
}

TEST_F(SingleSource, ignores_rules_for_ranks) {
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"rules": [{"layer": "w", "cut": "column", "replicas": 2, "parts": [1, 1, 1]}]})";
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
      std::vector<float> rows(static_cast<std::size_t>(padded / ranks * hidden));
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
