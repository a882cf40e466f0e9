// A rank is killed at every step of saving, or the disk is full. The output then has the old checkpoint or the new one,
// every other rank gets a typed error, and nothing is left behind.
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms_checkpoint.hpp>

#include "crash_points.generated.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 3;
constexpr int lost_a_peer = 7;
Json const config{{"model_type", "tiny"}};

class SavedCheckpoint : public testing::Test {
 protected:
  /// Saves after one step.
  void save_old() const {
    run_jobs(2, 1, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>());
      AdamW optimizer(model, {});
      train(*model, optimizer, 1, job.rank(), 2);
      save_checkpoint(job.dp_world(), *model, out(), {.optimizer = &optimizer, .config = config, .force = true});
      job.close();
    });
  }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }

  /// Returns the step of the checkpoint: 1 for the old one, 2 for the new one, 0 for none. Loads all of it.
  [[nodiscard]] std::int64_t step() const {
    if (read_checkpoint(out(), true).empty()) return 0;
    auto const model = std::make_shared<TinyMlp>();
    AdamW optimizer(model, {});
    load_checkpoint(connect({.backend = "fake"}), *model, out(), {.optimizer = &optimizer});
    EXPECT_EQ(optimizer.state().at("scale.step").item<double>(), static_cast<double>(optimizer.steps()));
    return optimizer.steps();
  }

 private:
  TemporaryDirectory folder_{};
};

TEST_F(SavedCheckpoint, stays_when_the_disk_is_full_and_training_goes_on) {
  save_old();
  for (auto const call : {Call::pwrite, Call::fsync}) {
    FaultySystem os;
    os.fail_always(call, ENOSPC);
    run_jobs(ranks, ranks, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>());
      AdamW optimizer(model, {});
      train(*model, optimizer, 2, job.rank(), ranks);
      {
        std::optional<platform::ScopedSystem> scope;
        if (job.rank() == 0) scope.emplace(os);
        job.barrier();
        EXPECT_THROW(
            save_checkpoint(job.dp_world(), *model, out(), {.optimizer = &optimizer, .config = config, .force = true}),
            IoError);
        job.barrier();
      }
      train(*model, optimizer, 1, job.rank(), ranks);
      job.close();
    });
    EXPECT_EQ(step(), 1);
    EXPECT_THAT(names_in(out()), testing::Each(testing::Not(testing::StartsWith("."))));
  }
}

/// Trains two steps and saves; rank `arguments[1]` is killed at a crash point. The others return 7 after an error that
/// names the lost rank.
CROSSRANK_RANK_SCENARIO(save_until) {
  auto const world = connect({.timeout = std::chrono::seconds(20), .progress = Progress::thread});
  MeshCollective const job(world, {.sharding_world_size = world.world_size()});
  auto const model = distributed(job, std::make_shared<TinyMlp>());
  AdamW optimizer(model, {});
  train(*model, optimizer, 2, world.rank(), world.world_size());
  int const victim = std::stoi(self.arguments.at(1));
  world.barrier();
  if (world.rank() == victim) platform::arm_crash_point(self.arguments.at(2), 1);
  try {
    save_checkpoint(job.dp_world(), *model, self.arguments.at(0),
                    {.optimizer = &optimizer, .config = config, .max_shard_bytes = 200, .force = true});
  } catch (PeerLostError const& e) {
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(victim));
    return testing::Test::HasFailure() ? 1 : lost_a_peer;
  }
  return 0;
}

class KilledSave : public SavedCheckpoint, public testing::WithParamInterface<std::string_view> {};

TEST_P(KilledSave, leaves_the_old_or_the_new_checkpoint_and_names_the_rank) {
  std::string const point(GetParam());
  bool const of_first = point.starts_with("checkpoint.commit") || point.starts_with("checkpoint.job");
  int const victim = of_first ? 0 : 1;
  save_old();

  auto const outcome = run_ranks(ranks, "save_until", {.arguments = {out(), std::to_string(victim), point}});

  ASSERT_EQ(outcome.ranks.at(static_cast<std::size_t>(victim)).signal, SIGKILL) << outcome.text();
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_THAT(outcome.leaks, testing::IsEmpty());
  auto const found = step();
  if (!point.starts_with("checkpoint.commit")) {
    EXPECT_EQ(found, 1);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    auto const& one = outcome.ranks.at(static_cast<std::size_t>(rank));
    // The others may have finished before they noticed.
    if (rank != victim) {
      EXPECT_TRUE(one.exit_code == lost_a_peer || (found != 1 && one.exit_code == 0)) << outcome.text();
    }
  }

  // The next call cleans up after the killed one.
  auto const again = run_ranks(ranks, "save_until", {.arguments = {out(), "-1", point}});

  EXPECT_TRUE(again.ok()) << again.text();
  EXPECT_EQ(step(), 2);
  EXPECT_THAT(names_in(out()), testing::Each(testing::Not(testing::StartsWith("."))));
}

std::vector<std::string_view> points_of_a_save() {
  std::vector<std::string_view> points;
  for (auto const point : crash_points) {
    // Only archives have a seal.
    if (point == "checkpoint.file.sealed") continue;
    if (point.starts_with("export.") || point.starts_with("checkpoint.")) points.push_back(point);
  }
  return points;
}

INSTANTIATE_TEST_SUITE_P(All, KilledSave, testing::ValuesIn(points_of_a_save()), [](auto const& tested) {
  std::string name(tested.param);
  for (auto& c : name) c = c == '.' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace crossrank::test
