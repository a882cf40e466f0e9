// Ranks that start one job with different options, or with a config that no program reads, get one error, and the
// output stays as it was.
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class JobOptions : public testing::Test {
 protected:
  JobOptions() {
    fs::create_directory(in());
    save_safetensors(in() / "model.safetensors", weights());
  }

  [[nodiscard]] static StateDict weights() { return {{"model.norm.weight", Tensor::zeros({4}, Dtype::f32)}}; }
  [[nodiscard]] fs::path in() const { return folder_.path() / "in"; }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }

  /// Runs a job on two ranks and expects this error from both.
  template <class Expected>
  static void expect_refused(std::string const& text, test::ThreadBody const& job) {
    for (auto const& error : test::try_thread_ranks(2, job)) {
      ASSERT_NE(error, nullptr) << text;
      EXPECT_THROW(std::rethrow_exception(error), Expected) << test::text_of(error);
      EXPECT_THAT(test::text_of(error), HasSubstr(text));
    }
  }
  /// Runs a job on two ranks, of which rank 1 has another value of each option in turn. Expects that the ranks disagree
  /// about that option, and that the job has written nothing.
  template <class Options>
  void expect_mismatches(std::vector<std::pair<std::string, Options>> const& others,
                         std::function<void(Collective const&, Options const&)> const& job) const {
    for (auto const& [option, other] : others) {
      expect_refused<MismatchError>(
          "pass different values of `" + option + "`",
          [&, &other = other](Collective const& world) { job(world, world.rank() == 0 ? Options() : other); });
      EXPECT_FALSE(fs::exists(out())) << option;
    }
  }

  test::TemporaryDirectory folder_{};
};

TEST_F(JobOptions, of_a_merge_must_be_equal) {
  expect_mismatches<ConsolidateOptions>({{"format", {.format = OutputFormat::torch}},
                                         {"force", {.force = true}},
                                         {"resume", {.resume = true}},
                                         {"read_back", {.read_back = ReadBack::none}},
                                         {"single_file", {.single_file = true}},
                                         {"max_shard_bytes", {.max_shard_bytes = 5}}},
                                        [&](auto const& world, auto const& options) {
                                          (void)consolidate(world, MergePlan::make(world, in()), out(), options);
                                        });
}

TEST_F(JobOptions, of_a_split_must_be_equal) {
  expect_mismatches<SplitOptions>({{"format", {.format = OutputFormat::torch}}, {"tp", {.tp = 4}}},
                                  [&](auto const& world, auto const& options) {
                                    (void)split(world, MergePlan::make(world, in()), out(), options);
                                  });
}

TEST_F(JobOptions, of_a_sharded_save_must_be_equal) {
  expect_mismatches<SaveOptions>(
      {{"format", {.format = OutputFormat::torch}},
       {"force", {.force = true}},
       {"read_back", {.read_back = ReadBack::none}}},
      [&](auto const& world, auto const& options) { (void)save_sharded(world, weights(), out(), options); });
}

TEST_F(JobOptions, with_different_outputs_are_refused) {
  auto const out_of = [&](Collective const& world) { return out() / std::to_string(world.rank()); };
  std::vector<test::ThreadBody> const jobs{
      [&](Collective const& world) { (void)consolidate(world, MergePlan::make(world, in()), out_of(world)); },
      [&](Collective const& world) { (void)consolidate(world, weights(), {}, out_of(world)); },
      [&](Collective const& world) { (void)save_sharded(world, weights(), out_of(world)); }};
  for (auto const& job : jobs) {
    expect_refused<IoError>("does not see the folder that rank 0 has made", job);
    for (auto const* const rank : {"0", "1"}) EXPECT_FALSE(fs::exists(out() / rank / "model.safetensors"));
  }
}

TEST_F(JobOptions, keep_the_old_checkpoint_if_the_config_is_not_an_object) {
  for (Json const& config : {Json::array({1}), Json(5), Json("llama")}) {
    std::vector<test::ThreadBody> const jobs{
        [&](Collective const& world) {
          (void)save_sharded(world, weights(), out(), {.config = config, .force = true});
        },
        [&](Collective const& world) {
          (void)consolidate(world, weights(), {}, out(), {.model = {.config = config}, .force = true});
        },
        [&](Collective const& world) {
          (void)get_full_state_dict(world, weights(), {}, {.model = {.config = config}});
        }};
    for (auto const& job : jobs) {
      test::run_thread_ranks(2, [&](Collective const& world) {
        (void)save_sharded(world, weights(), out(), {.config = {{"model_type", "llama"}}, .force = true});
      });
      expect_refused<UsageError>("`config` is not a JSON object", job);
      EXPECT_EQ(MergePlan::make(out()).tensors(), std::vector<std::string>{"model.norm.weight"});
    }
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
