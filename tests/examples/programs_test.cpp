#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/examples/run_example.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

class Programs : public testing::TestWithParam<int> {};

TEST_P(Programs, hello_joins_one_part_per_rank) {
  auto const end = run_example(GetParam(), "hello");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] " + std::to_string(24 * GetParam()) + " bytes\n");
}

TEST_P(Programs, fp8_agrees_on_the_largest_scale) {
  auto const end = run_example(GetParam(), "fp8");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  auto const rows = std::to_string(2 * GetParam());
  auto const count = std::to_string(8 * GetParam());
  auto const rest = ": F8_E4M3 [" + rows + ", 4], scale 1.000, " + count + " of " + count + " are 1\n";
  EXPECT_EQ(end.out, "[0] gate_proj" + rest + "[0] up_proj" + rest);
}

TEST_P(Programs, helpers_lose_one_step_when_a_rank_throws) {
  auto const last = std::to_string(GetParam() - 1);
  auto const end = run_example(GetParam(), "helpers", {last});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, testing::HasSubstr("rank " + last + ": no space for the cache"));
  EXPECT_THAT(end.out, testing::HasSubstr("rank 0 filled the cache, counts 16777217 tokens"));
  if (GetParam() > 1) {
    EXPECT_THAT(end.out, testing::HasSubstr("rank 0: rank " + last + " threw std::runtime_error"));
    EXPECT_THAT(end.out, testing::HasSubstr("rank 1 found the cache, counts 16777217 tokens"));
  }
}

TEST_P(Programs, experts_answer_every_token) {
  auto const end = run_example(GetParam(), "experts");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] experts of " + std::to_string(GetParam()) + " ranks: right\n");
}

TEST_P(Programs, queue_answers_every_request_once) {
  auto const end = run_example(GetParam(), "queue");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  auto const readers = GetParam() - 1;
  EXPECT_THAT(end.out, testing::HasSubstr("[0] " + std::string(readers > 0 ? "100" : "0") + " requests answered by " +
                                          std::to_string(readers) + " ranks\n"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Programs, testing::Values(1, 2, 4),
                         [](auto const& each) { return std::to_string(each.param); });

TEST(Pipeline, passes_every_batch_from_stage_to_stage) {
  for (int const ranks : {2, 4}) {
    auto const end = run_example(ranks, "pipeline");

    EXPECT_EQ(end.exit_code, 0) << end.err;
    auto const batches = std::to_string(10 * ranks);
    EXPECT_EQ(end.out, "[0] " + batches + " of " + batches + " batches right\n");
  }
}

TEST(Mesh, works_with_one_rank) {
  auto const end = run_example(1, "mesh");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] rank 0 is dp 0, tp 0: activation 1 0, gradient 0\n");
}

TEST(Mlp, goes_on_from_its_checkpoint_with_other_ranks_and_another_transform) {
  TemporaryDirectory const folder;
  auto const whole = (folder.path() / "whole").string();
  auto const parts = (folder.path() / "parts").string();

  auto const at_once = run_example(1, "mlp", {"ddp", whole, "60"});
  auto const first = run_example(3, "mlp", {"shard", parts, "30"});
  auto const second = run_example(2, "mlp", {"ddp", parts, "60"});
  auto const again = run_example(2, "mlp", {"ddp", parts, "60"});

  EXPECT_EQ(at_once.exit_code, 0) << at_once.err;
  EXPECT_THAT(first.out, testing::StartsWith("[0] step 30, loss ")) << first.err;
  EXPECT_THAT(second.out, testing::StartsWith("[0] step 60, loss ")) << second.err;
  EXPECT_EQ(second.out, at_once.out);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, "[0] step 60, no step is left\n");
}

TEST(Mlp, refuses_an_unknown_transform) {
  TemporaryDirectory const folder;
  auto const end = run_example(1, "mlp", {"dpd", (folder.path() / "out").string(), "1"});

  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.err, testing::HasSubstr("usage: mlp ddp|shard"));
}

TEST(PpMerge, keeps_the_order_of_the_model) {
  auto const end = run_example(2, "pp_merge");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out,
            "[0] tp 0: layer 0, first weight 0.0\n"
            "[0] tp 0: layer 1, first weight 1.0\n"
            "[0] tp 0: layer 2, first weight 2.0\n");
}

TEST(PpMerge, merges_each_tensor_parallel_rank_separately) {
  auto const end = run_example(4, "pp_merge");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (std::string const rank : {"[0] tp 0: ", "[1] tp 1: "}) {
    for (std::string const layer :
         {"layer 0, first weight 0.0\n", "layer 1, first weight 1.0\n", "layer 2, first weight 2.0\n"}) {
      EXPECT_THAT(end.out, testing::HasSubstr(rank + layer));
    }
  }
  EXPECT_EQ(std::count(end.out.begin(), end.out.end(), '\n'), 6);
}

TEST(PpMerge, merges_one_stage_alone) {
  auto const end = run_example(1, "pp_merge");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out,
            "[0] tp 0: layer 0, first weight 0.0\n"
            "[0] tp 0: layer 1, first weight 1.0\n");
}

}  // namespace
}  // namespace crossrank::test
