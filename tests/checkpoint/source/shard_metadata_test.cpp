// Rank metadata in the headers of shards.
#include "workspace/checkpoint/source/shard_metadata.hpp"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ShardMetadata : public testing::Test {
 protected:
  ShardMetadata() {
    std::vector<float> values(64);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    fs::create_directory(folder_.path() / "model");
    save_safetensors(folder_.path() / "model" / "model.safetensors",
                     {{"model.layers.0.mlp.up_proj.weight", Tensor::of<float>(values, {8, 8})}});
    make("sharded", 4);
  }
  void make(std::string const& name, int tp) {
    (void)split(world_, MergePlan::make(world_, folder_.path() / "model"), folder_.path() / name, {.tp = tp});
  }
  [[nodiscard]] fs::path file(int rank, std::string const& name = "sharded") const {
    return folder_.path() / name / ("rank" + std::to_string(rank) + ".safetensors");
  }
  [[nodiscard]] std::string refusal() const {
    try {
      (void)MergePlan::make(world_, folder_.path() / "sharded");
    } catch (FormatError const& error) {
      return error.what();
    }
    return "taken";
  }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
};

TEST_F(ShardMetadata, allow_a_valid_merge) {
  EXPECT_EQ(refusal(), "taken");
  auto const set = open_shard_set(folder_.path() / "sharded");
  EXPECT_EQ(set.sources[2]->attributes().at(shard_metadata_key).at("rank"), 2);
  EXPECT_EQ(set.fused, FusedLayout::per_rank);
}

TEST_F(ShardMetadata, reveal_swapped_files) {
  fs::rename(file(1), file(9));
  fs::rename(file(2), file(1));
  fs::rename(file(9), file(2));
  EXPECT_THAT(refusal(), HasSubstr("rank1.safetensors belongs to rank 2"));
}

TEST_F(ShardMetadata, reveal_a_file_copied_over_another) {
  fs::copy_file(file(0), file(3), fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("both belong to rank 0"));
}

TEST_F(ShardMetadata, reveal_a_file_of_another_split) {
  make("other", 2);
  fs::copy_file(file(1, "other"), file(1), fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("different jobs"));
}

TEST_F(ShardMetadata, reveal_missing_ranks_of_saved_weights) {
  auto const save = [&](std::string const& name) {
    test::run_thread_ranks(3, [&](Collective const& world) {
      (void)save_sharded(world, {{"model.layers.0.mlp.down_proj.weight", Tensor::zeros({4, 8}, Dtype::f32)}},
                         folder_.path() / name, {.force = true});
    });
  };
  save("sharded");
  fs::remove(file(3));
  EXPECT_EQ(refusal(), "taken");
  EXPECT_EQ(open_shard_set(folder_.path() / "sharded").fused, FusedLayout::automatic);

  fs::remove(file(2));
  EXPECT_THAT(refusal(), HasSubstr("tensor-parallel rank 2 of 3 is missing: rank2.safetensors"));
  save("other");
  fs::copy_file(file(2, "other"), file(2));
  EXPECT_THAT(refusal(), HasSubstr("different jobs"));
}

TEST_F(ShardMetadata, reveal_missing_ranks) {
  fs::remove(file(3));
  EXPECT_THAT(refusal(), HasSubstr("tensor-parallel rank 3 of 4 is missing: rank3.safetensors"));
}

}  // namespace
}  // namespace crossrank::checkpoint
