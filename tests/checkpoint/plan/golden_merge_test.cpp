// Merges shards that other programs made for two ranks. The result equals the original model bit for bit.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::difference;
using test::read_checkpoint;
using test::read_model;
using test::TemporaryDirectory;
using test::text_of_file;

fs::path golden() { return CROSSRANK_TEST_DATA; }

class GoldenMerge : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] fs::path model() const { return golden() / GetParam(); }
};

TEST_P(GoldenMerge, returns_the_full_model_bit_for_bit_in_one_process) {
  TemporaryDirectory const folder;
  auto const out = folder.path() / "full";
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, model() / "tp2");

  auto const summary = checkpoint::consolidate(world, plan, out);

  EXPECT_EQ(difference(read_model(model() / "full" / "model.safetensors"), read_checkpoint(out, true)), "");
  EXPECT_EQ(summary.files, 1);
  for (auto const& entry : fs::directory_iterator(model() / "tp2")) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_EQ(text_of_file(out / entry.path().filename()), text_of_file(entry.path())) << entry.path();
  }
}

TEST_P(GoldenMerge, reads_each_tensor_without_a_merged_file) {
  auto const expected = read_model(model() / "full" / "model.safetensors");
  auto const plan = checkpoint::MergePlan::make(connect({.backend = "fake"}), model() / "tp2");

  EXPECT_EQ(plan.tensors().size(), expected.size());
  for (auto const& [name, tensor] : expected) {
    auto const merged = plan.read(name);
    auto const bytes = merged.bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end())) << name;
  }
}

TEST_P(GoldenMerge, writes_the_same_model_in_several_files_by_three_ranks) {
  TemporaryDirectory const folder;
  auto const out = folder.path() / "full";

  test::run_thread_ranks(3, [&](Collective const& world) {
    auto const plan = checkpoint::MergePlan::make(world, model() / "tp2");
    auto const summary = checkpoint::consolidate(world, plan, out, {.max_shard_bytes = 60'000});
    EXPECT_GT(summary.files, 2);
  });

  EXPECT_EQ(difference(read_model(model() / "full" / "model.safetensors"), read_checkpoint(out, true)), "");
}

TEST_P(GoldenMerge, is_reversed_by_a_split) {
  TemporaryDirectory const folder;
  auto const world = connect({.backend = "fake"});
  auto const whole = checkpoint::MergePlan::make(world, model() / "full");

  auto const parts = checkpoint::split(world, whole, folder.path() / "tp2", {.tp = 2});
  auto const plan = checkpoint::MergePlan::make(world, folder.path() / "tp2");
  (void)checkpoint::consolidate(world, plan, folder.path() / "again");

  EXPECT_EQ(parts.files, 2);
  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"})
    EXPECT_EQ(difference(read_model(model() / "tp2" / rank), read_model(folder.path() / "tp2" / rank)), "") << rank;
  EXPECT_EQ(
      difference(read_model(model() / "full" / "model.safetensors"), read_checkpoint(folder.path() / "again", true)),
      "");
}

TEST_P(GoldenMerge, is_not_needed_to_split_four_shards_into_two) {
  TemporaryDirectory const folder;
  auto const world = connect({.backend = "fake"});
  auto const whole = checkpoint::MergePlan::make(world, model() / "full");
  // Groups of 128 along 256 inputs can be split over at most two ranks.
  if (GetParam() == "quantized/int4_awq") {
    EXPECT_THROW((void)checkpoint::split(world, whole, folder.path() / "tp4", {.tp = 4}), UsageError);
    EXPECT_FALSE(fs::exists(folder.path() / "tp4"));
    return;
  }
  (void)checkpoint::split(world, whole, folder.path() / "tp4", {.tp = 4});

  auto const four = checkpoint::MergePlan::make(world, folder.path() / "tp4");
  (void)checkpoint::split(world, four, folder.path() / "tp2", {.tp = 2});

  for (auto const* rank : {"rank0.safetensors", "rank1.safetensors"})
    EXPECT_EQ(difference(read_model(model() / "tp2" / rank), read_model(folder.path() / "tp2" / rank)), "") << rank;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenMerge,
                         testing::Values("quantized/fp8", "quantized/nvfp4", "quantized/int4_awq",
                                         "architectures/mixtral", "architectures/gpt_neox"),
                         [](auto const& tested) {
                           auto name = tested.param;
                           for (auto& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

CROSSRANK_RANK_SCENARIO(merge_golden_in_processes) {
  auto const world = connect();
  auto const plan = checkpoint::MergePlan::make(world, self.arguments.at(0));
  (void)checkpoint::consolidate(world, plan, self.arguments.at(1), {.max_shard_bytes = 60'000});
  return 0;
}

TEST(GoldenMergeInProcesses, returns_the_full_model_in_four_processes) {
  auto const model = golden() / "quantized" / "nvfp4";
  TemporaryDirectory const folder;
  auto const out = folder.path() / "full";

  auto const outcome = test::run_ranks(4, "merge_golden_in_processes", {.arguments = {model / "tp2", out}});

  ASSERT_TRUE(outcome.ok()) << outcome.text();
  EXPECT_EQ(difference(read_model(model / "full" / "model.safetensors"), read_checkpoint(out, true)), "");
}

}  // namespace
}  // namespace crossrank
