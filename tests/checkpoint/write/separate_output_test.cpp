// The output may be inside the folder of the inputs or above it, unless a later merge of the same inputs would then
// read something else.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Two ranks' folders, each with a model.
class NestedOutput : public testing::Test {
 protected:
  void write_ranks(fs::path const& below) const {
    for (int rank = 0; rank < 2; ++rank) {
      auto const folder = at(below) / ("rank_" + std::to_string(rank));
      fs::create_directories(folder);
      auto const number = static_cast<float>(rank);
      save_safetensors(folder / "model.safetensors",
                       {{"model.layers.0.mlp.up_proj.weight", Tensor::of<float>({number, number + 0.5F}, {1, 2})}});
    }
  }
  [[nodiscard]] fs::path at(fs::path const& way) const { return folder_.path() / way; }
  void merge(fs::path const& in, fs::path const& out) const {
    (void)consolidate(world_, MergePlan::make(world_, at(in), {.tp = 2}), at(out));
  }
  /// Merges once more, to another place.
  [[nodiscard]] test::ModelBytes merged_again(fs::path const& in) const {
    merge(in, "again");
    return test::read_model(at("again"));
  }
  void expect_refused(fs::path const& in, fs::path const& out, std::string const& reason) const {
    try {
      merge(in, out);
      ADD_FAILURE() << out << " was accepted";
    } catch (UsageError const& error) {
      EXPECT_THAT(error.info().message, testing::HasSubstr(reason));
      EXPECT_EQ(error.info().resource, at(out).string());
      EXPECT_NE(error.info().hint, "");
    }
  }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
};

TEST_F(NestedOutput, may_be_inside_the_input) {
  write_ranks("in");
  merge("in", "in/merged");
  auto const merged = test::read_model(at("in/merged"));
  EXPECT_FALSE(merged.empty());
  EXPECT_EQ(merged_again("in"), merged);
}

TEST_F(NestedOutput, may_be_above_the_input) {
  write_ranks("out/shards");
  merge("out/shards", "out");
  EXPECT_EQ(merged_again("out/shards"), test::read_checkpoint(at("out"), false));
}

TEST_F(NestedOutput, may_have_the_name_of_a_rank_beside_the_input) {
  write_ranks("runs/tp2");
  EXPECT_NO_THROW(merge("runs/tp2", "runs/tp1"));
}

TEST_F(NestedOutput, is_refused_where_it_would_be_read_as_a_rank) {
  write_ranks("in");
  fs::create_directories(at("in/rank_3"));
  for (auto const* const name : {"in/rank_2", "in/rank_2/", "in/./rank_3"})
    expect_refused("in", name, "directory of a rank");
  EXPECT_FALSE(fs::exists(at("in/rank_2")));
}

TEST_F(NestedOutput, is_refused_where_it_would_hide_newer_checkpoints) {
  write_ranks("run/global_step1");
  std::ofstream(at("run/latest")) << "global_step1\n";
  expect_refused("run/global_step1", "run", "hide");
  EXPECT_NO_THROW(merge("run/global_step1", "run/merged"));
}

TEST_F(NestedOutput, is_refused_between_the_input_and_its_ranks) {
  write_ranks("run/global_step1");
  std::ofstream(at("run/latest")) << "global_step1\n";
  expect_refused("run", "run/global_step1", "contains the input");
}

}  // namespace
}  // namespace crossrank::checkpoint
