// A number that makes no sense is refused by every job, before it writes anything.
#include <exception>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A job with a number that is too small.
struct WrongNumber {
  char const* name;
  char const* option;
  char const* got;
  std::function<void(Collective const&, fs::path const& in, fs::path const& out)> run;
};

/// Shown in the list of tests.
void PrintTo(WrongNumber const& wrong, std::ostream* out) { *out << wrong.option << " " << wrong.got; }

StateDict weights() { return {{"w", Tensor::zeros({4}, Dtype::f32)}}; }

/// Returns the jobs with a negative number of threads.
std::vector<WrongNumber> wrong_threads() {
  auto const job = [](char const* name, auto run) { return WrongNumber{name, "threads", "-3", run}; };
  return {
      job("consolidate",
          [](auto const& world, auto const& in, auto const& out) {
            (void)consolidate(world, MergePlan::make(world, in), out, {.threads = -3});
          }),
      job("split", [](auto const& world, auto const& in,
                      auto const& out) { (void)split(world, MergePlan::make(world, in), out, {.threads = -3}); }),
      job("save_sharded", [](auto const& world, auto const&,
                             auto const& out) { (void)save_sharded(world, weights(), out, {.threads = -3}); }),
      job("export", [](auto const& world, auto const&,
                       auto const& out) { (void)consolidate(world, weights(), {}, out, {.threads = -3}); }),
      job("background_export",
          [](auto const& world, auto const&, auto const& out) {
            iconsolidate(world, weights(), {}, out, {.write = {.threads = -3}}).wait();
          }),
      job("get_full_state_dict", [](auto const& world, auto const&,
                                    auto const&) { (void)get_full_state_dict(world, weights(), {}, {.threads = -3}); }),
      job("reshard", [](auto const& world, auto const&,
                        auto const&) { (void)reshard(world, weights(), {}, {}, {.threads = -3}); }),
      job("verify",
          [](auto const& world, auto const& in, auto const&) { (void)verify(world, in, {}, {.threads = -3}); }),
      job("part",
          [](auto const&, auto const& in, auto const& out) {
            (void)consolidate_part(PartsPlan::make(MergePlan::make(in), out), 0, {.threads = -3});
          }),
      job("finish", [](auto const&, auto const& in, auto const& out) {
        (void)finish_parts(PartsPlan::make(MergePlan::make(in), out), {.threads = -3});
      })};
}

std::vector<WrongNumber> wrong_sizes() {
  auto const plan = [](char const* option, PlanOptions const& options) {
    return WrongNumber{option, option, "-1", [options](auto const& world, auto const& in, auto const&) {
                         (void)MergePlan::make(world, in, options);
                       }};
  };
  return {
      plan("tp", {.tp = -1}),
      plan("pp", {.pp = -1}),
      plan("ep", {.ep = -1}),
      plan("moe_ep", {.moe_ep = -1}),
      WrongNumber{"split_tp", "tp", "0",
                  [](auto const& world, auto const& in, auto const& out) {
                    (void)split(world, MergePlan::make(world, in), out, {.tp = 0});
                  }},
      WrongNumber{"max_shard_bytes", "max_shard_bytes", "0",
                  [](auto const& world, auto const& in, auto const& out) {
                    (void)consolidate(world, MergePlan::make(world, in), out, {.max_shard_bytes = 0});
                  }},
      WrongNumber{"max_shard_bytes_of_an_export", "max_shard_bytes", "0",
                  [](auto const& world, auto const&, auto const& out) {
                    (void)consolidate(world, weights(), {}, out, {.max_shard_bytes = 0});
                  }},
      WrongNumber{"max_shard_bytes_of_parts", "max_shard_bytes", "0", [](auto const&, auto const& in, auto const& out) {
                    (void)PartsPlan::make(MergePlan::make(in), out, {.max_shard_bytes = 0});
                  }}};
}

class WrongNumbers : public testing::TestWithParam<WrongNumber> {};

TEST_P(WrongNumbers, are_a_usage_error_on_all_ranks_that_names_them) {
  auto const& wrong = GetParam();
  test::TemporaryDirectory const folder;
  auto const in = folder.path() / "model.safetensors";
  auto const out = folder.path() / "out";
  save_safetensors(in, weights());
  for (auto const& error : test::try_thread_ranks(2, [&](Collective const& world) { wrong.run(world, in, out); })) {
    ASSERT_NE(error, nullptr);
    try {
      std::rethrow_exception(error);
    } catch (UsageError const& refused) {
      EXPECT_THAT(refused.what(), testing::HasSubstr(std::string("`") + wrong.option + "`"));
      EXPECT_EQ(refused.info().got, wrong.got);
    }
  }
  EXPECT_FALSE(fs::exists(out));
}

std::string name_of_number(testing::TestParamInfo<WrongNumber> const& tested) { return tested.param.name; }

INSTANTIATE_TEST_SUITE_P(Threads, WrongNumbers, testing::ValuesIn(wrong_threads()), name_of_number);
INSTANTIATE_TEST_SUITE_P(Sizes, WrongNumbers, testing::ValuesIn(wrong_sizes()), name_of_number);

}  // namespace
}  // namespace crossrank::checkpoint
