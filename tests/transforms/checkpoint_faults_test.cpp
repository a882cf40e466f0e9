// A rank is killed at every step of saving or stopped, or the disk is full. The output then has the old checkpoint or
// the new one, every other rank gets a typed error, and nothing is left behind. In both formats.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "crash_points.generated.hpp"
#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"
#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/discovery/inventory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 3;
constexpr int lost_a_peer = 7;
Json const config{{"model_type", "tiny"}};

CheckpointFormat format_of(std::string const& name) {
  return name == "dcp" ? CheckpointFormat::dcp : CheckpointFormat::hugging_face;
}

class SavedCheckpoint : public testing::Test {
 protected:
  /// Saves after one step.
  void save_old(CheckpointFormat format) const {
    run_jobs(2, 1, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>());
      AdamW optimizer(model, {});
      train(*model, optimizer, 1, job.rank(), 2);
      save_checkpoint(job.dp_world(), *model, out(),
                      {.optimizer = &optimizer, .config = config, .format = format, .force = true});
      job.close();
    });
  }
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }

  /// Returns the step of the checkpoint: 1 for the old one, 2 for the new one, 0 for none. Loads all of it.
  [[nodiscard]] std::int64_t step() const {
    auto const alone = connect({.backend = "fake"});
    if (!has_checkpoint(alone, out())) return 0;
    auto const model = std::make_shared<TinyMlp>();
    AdamW optimizer(model, {});
    load_checkpoint(alone, *model, out(), {.optimizer = &optimizer});
    EXPECT_EQ(optimizer.state().at("scale.step").item<double>(), static_cast<double>(optimizer.steps()));
    return optimizer.steps();
  }

 private:
  TemporaryDirectory folder_{};
};

/// No folder of a job is left.
auto has_no_folder_of_a_job() { return testing::Each(testing::Not(testing::StartsWith(".crossrank"))); }

class FullDisk : public SavedCheckpoint, public testing::WithParamInterface<std::string> {};

TEST_P(FullDisk, keeps_the_checkpoint_and_training_continues) {
  auto const format = format_of(GetParam());
  save_old(format);
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
        EXPECT_THROW(save_checkpoint(job.dp_world(), *model, out(),
                                     {.optimizer = &optimizer, .config = config, .format = format, .force = true}),
                     IoError);
        job.barrier();
      }
      train(*model, optimizer, 1, job.rank(), ranks);
      job.close();
    });
    EXPECT_EQ(step(), 1);
    EXPECT_THAT(names_in(out()), has_no_folder_of_a_job());
  }
}

INSTANTIATE_TEST_SUITE_P(All, FullDisk, testing::Values("hugging_face", "dcp"),
                         [](auto const& tested) { return tested.param; });

/// A save during which a rank is killed or stopped.
struct DisturbedSave {
  fs::path out{};
  std::string format{};
  int victim = 0;
};

/// Saves, and returns the exit code of the rank: 7 after a `Lost` that names the victim, else 0.
template <class Lost>
int save_and_expect(MeshCollective const& job, TrainableModel& model, AdamW& optimizer, DisturbedSave const& save) {
  try {
    save_checkpoint(job.dp_world(), model, save.out,
                    {.optimizer = &optimizer,
                     .config = config,
                     .format = format_of(save.format),
                     .max_shard_bytes = 200,
                     .force = true});
  } catch (Lost const& e) {
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(save.victim));
    return testing::Test::HasFailure() ? 1 : lost_a_peer;
  }
  return 0;
}

/// Trains two steps and saves in format `arguments[3]`; rank `arguments[1]` is killed when it comes to a crash point
/// for the first or the `arguments[4]`-th time. The others return 7 after an error that names the lost rank.
CROSSRANK_RANK_SCENARIO(save_until) {
  auto const world = connect({.timeout = std::chrono::seconds(20), .progress = ProgressMode::thread});
  MeshCollective const job(world, {.sharding_world_size = world.world_size()});
  auto const model = distributed(job, std::make_shared<TinyMlp>());
  AdamW optimizer(model, {});
  train(*model, optimizer, 2, world.rank(), world.world_size());
  int const victim = std::stoi(self.arguments.at(1));
  world.barrier();
  if (world.rank() == victim) {
    auto const count = self.arguments.size() > 4 ? std::stoi(self.arguments[4]) : 1;
    platform::arm_crash_point(self.arguments.at(2), count);
  }
  return save_and_expect<PeerLostError>(job, *model, optimizer, {self.arguments.at(0), self.arguments.at(3), victim});
}

/// A crash point and the format that is saved.
struct KilledAt {
  std::string format{};
  std::string point{};
};

class KilledSave : public SavedCheckpoint, public testing::WithParamInterface<KilledAt> {};

TEST_P(KilledSave, leaves_the_old_or_the_new_checkpoint_and_names_the_rank) {
  auto const& [format, point] = GetParam();
  bool const of_first = point.starts_with("checkpoint.commit") || point.starts_with("checkpoint.job");
  int const victim = of_first ? 0 : 1;
  save_old(format_of(format));

  auto const outcome = run_ranks(ranks, "save_until", {.arguments = {out(), std::to_string(victim), point, format}});

  ASSERT_EQ(outcome.ranks.at(as_size(victim)).signal, SIGKILL) << outcome.text();
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_THAT(outcome.leaks, testing::IsEmpty());
  auto const found = step();
  if (!point.starts_with("checkpoint.commit")) {
    EXPECT_EQ(found, 1);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    auto const& one = outcome.ranks.at(as_size(rank));
    // The others may have finished before they noticed.
    if (rank != victim) {
      EXPECT_TRUE(one.exit_code == lost_a_peer || (found != 1 && one.exit_code == 0)) << outcome.text();
    }
  }

  // The next call cleans up after the killed one.
  auto const again = run_ranks(ranks, "save_until", {.arguments = {out(), "-1", point, format}});

  EXPECT_TRUE(again.ok()) << again.text();
  EXPECT_EQ(step(), 2);
  EXPECT_THAT(names_in(out()), has_no_folder_of_a_job());
}

/// A save exports its units one after the other, in the foreground.
bool is_of_another_call(std::string_view point) {
  return point.starts_with("export.background.") || point.starts_with("export.fill.") ||
         point.starts_with("export.reshard.");
}

std::vector<KilledAt> points_of_a_save() {
  std::vector<KilledAt> points;
  for (auto const point : crash_points) {
    if (!point.starts_with("export.") && !point.starts_with("checkpoint.")) continue;
    if (is_of_another_call(point)) continue;
    // Only archives have a seal.
    if (point != "checkpoint.file.sealed") points.push_back({"hugging_face", std::string(point)});
    points.push_back({"dcp", std::string(point)});
  }
  return points;
}

INSTANTIATE_TEST_SUITE_P(All, KilledSave, testing::ValuesIn(points_of_a_save()), [](auto const& tested) {
  auto name = tested.param.format + "_" + tested.param.point;
  for (auto& c : name) c = c == '.' ? '_' : c;
  return name;
});

class KilledJob : public SavedCheckpoint, public testing::WithParamInterface<KilledAt> {};

TEST_P(KilledJob, that_was_committing_is_completed_by_the_job_that_loads) {
  auto const& [format, point] = GetParam();
  save_old(format_of(format));
  int killed = 0;
  for (int rename = 1;; ++rename) {
    SCOPED_TRACE(rename);
    auto const outcome = run_ranks(1, "save_until", {.arguments = {out(), "0", point, format, std::to_string(rename)}});
    if (outcome.ok()) break;
    ASSERT_EQ(outcome.ranks.at(0).signal, SIGKILL) << outcome.text();
    ++killed;
    if (checkpoint::find_interrupted_commit(checkpoint::list_directory(out()))) {
      EXPECT_THROW((void)checkpoint::open_shard_set(out()), FormatError);
      EXPECT_THROW((void)checkpoint::take_inventory(out(), {}), FormatError);
    }
    EXPECT_EQ(step(), 2);
    EXPECT_NO_THROW((void)checkpoint::open_shard_set(out()));
  }
  EXPECT_GE(killed, 3);  // config, tensors, and what is no tensor
}

INSTANTIATE_TEST_SUITE_P(All, KilledJob,
                         testing::Values(KilledAt{"hugging_face", "checkpoint.commit.moved_old"},
                                         KilledAt{"hugging_face", "checkpoint.commit.named"},
                                         KilledAt{"dcp", "checkpoint.commit.moved_old"},
                                         KilledAt{"dcp", "checkpoint.commit.named"}),
                         [](auto const& tested) {
                           return tested.param.format +
                                  (tested.param.point.ends_with("named") ? "_named" : "_moved_old");
                         });

/// The call at which a rank stops while it saves.
struct StoppedAt {
  std::string format{};
  std::string place{};  ///< "write" or "commit"
};

/// Trains two steps and saves in format `arguments[1]`. A rank stops when it opens its first file, or rank 0 when it
/// moves the old config aside. The others return 7 after an error that names it.
CROSSRANK_RANK_SCENARIO(save_with_a_stop) {
  auto const world = connect({.backend = "shm", .timeout = std::chrono::seconds(6), .progress = ProgressMode::thread});
  MeshCollective const job(world, {.sharding_world_size = world.world_size()});
  auto const model = distributed(job, std::make_shared<TinyMlp>());
  AdamW optimizer(model, {});
  train(*model, optimizer, 2, world.rank(), world.world_size());
  bool const commits = self.arguments.at(2) == "commit";
  int const victim = commits ? 0 : 1;
  FaultySystem os;
  std::atomic<bool> stopped{false};
  os.on_name = [&](Call call, std::string const& name) {
    bool const is_weights = name.find("safetensors") != std::string::npos || name.find("distcp") != std::string::npos;
    bool const is_config = name.find("config.json") != std::string::npos;
    bool const is_place = commits ? call == Call::renameat && is_config : call == Call::openat && is_weights;
    if (is_place && !stopped.exchange(true)) std::raise(SIGSTOP);
  };
  world.barrier();
  std::optional<platform::ScopedSystem> scope;
  if (world.rank() == victim) scope.emplace(os);
  return save_and_expect<TimeoutError>(job, *model, optimizer, {self.arguments.at(0), self.arguments.at(1), victim});
}

class StoppedSave : public SavedCheckpoint, public testing::WithParamInterface<StoppedAt> {};

TEST_P(StoppedSave, ends_at_the_deadline_and_names_the_rank) {
  auto const& [format, place] = GetParam();
  int const victim = place == "commit" ? 0 : 1;
  save_old(format_of(format));

  ProcessRanks job(ranks, "save_with_a_stop", {.arguments = {out(), format, place}});
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != victim) {
      EXPECT_TRUE(job.wait_for_exit(rank, step_timeout));
    }
  }
  EXPECT_TRUE(job.running(victim));
  if (place == "commit") {
    EXPECT_THROW((void)step(), FormatError);  // the files of the running job are left alone
  } else {
    EXPECT_EQ(step(), 1);
  }
  job.signal(victim, SIGCONT);
  auto const outcome = job.wait();

  EXPECT_THAT(outcome.leaks, testing::IsEmpty());
  for (auto const& rank : outcome.ranks) EXPECT_EQ(rank.exit_code, lost_a_peer) << outcome.text();
  // The first rank finishes the commit that it had begun.
  EXPECT_EQ(step(), place == "commit" ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(All, StoppedSave,
                         testing::Values(StoppedAt{"hugging_face", "write"}, StoppedAt{"hugging_face", "commit"},
                                         StoppedAt{"dcp", "write"}, StoppedAt{"dcp", "commit"}),
                         [](auto const& tested) { return tested.param.format + "_" + tested.param.place; });

}  // namespace
}  // namespace crossrank::test
