// A model that is given by the name of a file.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string const keys = "model.layers.0.self_attn.k_proj.weight";

/// A layer with two heads of keys, each of four rows.
class ModelFile : public testing::Test {
 protected:
  ModelFile() {
    std::ofstream(folder_.path() / "config.json") << Json{{"model_type", "llama"},
                                                          {"hidden_size", 16},
                                                          {"num_attention_heads", 4},
                                                          {"num_key_value_heads", 2},
                                                          {"num_hidden_layers", 1}};
    save_safetensors(file(), {{keys, Tensor::zeros({8, 16}, Dtype::f32)}});
  }
  [[nodiscard]] fs::path file() const { return folder_.path() / "model.safetensors"; }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
};

TEST_F(ModelFile, is_described_by_the_config_beside_it) {
  (void)split(world_, MergePlan::make(world_, file()), out(), {.tp = 4});

  auto const shard = load_safetensors(out() / "rank1.safetensors");
  EXPECT_EQ(shard.at(keys).shape(), (Shape{4, 16})) << "two ranks share a head";
  EXPECT_TRUE(fs::exists(out() / "config.json"));
}

TEST_F(ModelFile, of_one_rank_is_not_described_by_the_config_of_all) {
  save_safetensors(folder_.path() / "rank0.safetensors", {{keys, Tensor::zeros({2, 16}, Dtype::f32)}});

  (void)consolidate(world_, MergePlan::make(world_, folder_.path() / "rank0.safetensors"), out());

  EXPECT_FALSE(fs::exists(out() / "config.json"));
}

// Such a config used to count as absent.
TEST_F(ModelFile, is_not_merged_when_its_config_is_a_link_to_nothing) {
  auto const config = folder_.path() / "config.json";
  for (auto const* target : {"moved.json", "config.json"}) {  // the second link leads to itself
    fs::remove(config);
    fs::create_symlink(target, config);
    for (auto const& input : {file(), folder_.path()})
      EXPECT_EQ(test::error_of<IoError>([&] { (void)MergePlan::make(world_, input); }).resource, config.string());
    auto const defects = verify(world_, folder_.path()).defects;
    EXPECT_THAT(defects, testing::Contains(testing::Field(&Defect::resource, config.string()))) << target;
  }
}

TEST_F(ModelFile, is_refused_when_a_size_in_its_config_is_in_quotes) {
  std::ofstream(folder_.path() / "config.json") << R"({"model_type": "llama", "num_key_value_heads": "2"})";

  auto const error = test::error_of<FormatError>([&] { (void)MergePlan::make(world_, folder_.path()); });

  EXPECT_EQ(error.got, R"("num_key_value_heads": "2")");
}

// The key was ignored, and the index was not compared with the files.
TEST_F(ModelFile, of_safetensors_has_no_model_key) {
  EXPECT_EQ(
      test::error_of<UsageError>([&] { (void)MergePlan::make(world_, folder_.path(), {.model_key = "model"}); }).got,
      "model");
  EXPECT_EQ(MergePlan::make(world_, folder_.path(), {.model_key = "."}).tensors(), std::vector{keys});
}

TEST_F(ModelFile, that_is_a_renamed_file_of_a_rank_is_refused) {
  (void)split(world_, MergePlan::make(world_, file()), out(), {.tp = 2});
  fs::rename(out() / "rank0.safetensors", out() / "model.safetensors");
  fs::remove(out() / "rank1.safetensors");

  EXPECT_THAT(test::error_of<FormatError>([&] { (void)MergePlan::make(world_, out()); }).failed_ranks,
              testing::ElementsAre(1));
}

TEST_F(ModelFile, may_be_an_index) {
  auto const index = folder_.path() / "model.safetensors.index.json";
  std::ofstream(index) << Json{{"metadata", Json::object()}, {"weight_map", {{keys, "model.safetensors"}}}};

  EXPECT_EQ(MergePlan::make(world_, index).tensors(), std::vector{keys});
}

}  // namespace
}  // namespace crossrank::checkpoint
