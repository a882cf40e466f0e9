// A job that writes a checkpoint is killed, or its file system fails, at every step. The output then has the old
// checkpoint, none, or the new one, and the job can be resumed.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "crash_points.generated.hpp"
#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/write/interrupted.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::Call;
using test::difference;
using test::Fault;
using test::Interrupted;
using test::names_in;
using test::options_for;
using test::read_checkpoint;
using test::read_model;
using test::TemporaryDirectory;
using testing::Each;
using testing::ElementsAre;
using testing::Not;
using testing::StartsWith;

constexpr int last_visit = 3;

CROSSRANK_RANK_SCENARIO(consolidate_until) {
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, self.arguments.at(0));
  platform::arm_crash_point(self.arguments.at(2), std::stoi(self.arguments.at(3)));
  (void)checkpoint::consolidate(world, plan, self.arguments.at(1), options_for(self.arguments.at(4)));
  return 0;
}

class Killed : public Interrupted, public testing::WithParamInterface<std::string_view> {};

TEST_P(Killed, leaves_the_old_checkpoint_or_none_or_the_new_one_and_can_be_resumed) {
  std::string const point(GetParam());
  // Only archives have a seal.
  std::string const format = point == "checkpoint.file.sealed" ? "torch" : "safetensors";
  for (int visit = 1; visit <= last_visit; ++visit) {
    put_old();
    auto const outcome =
        test::run_ranks(1, "consolidate_until", {.arguments = {in(), out(), point, std::to_string(visit), format}});
    bool const killed = outcome.ranks.at(0).signal == SIGKILL;
    ASSERT_TRUE(killed || (visit > 1 && outcome.ok())) << outcome.text();
    if (!killed) return;
    auto const found = state();
    EXPECT_TRUE(found == "old" || found == "none" || found == "new") << found << " at visit " << visit;
    if (!point.starts_with("checkpoint.commit")) {
      EXPECT_EQ(found, "old") << visit;
    }

    auto resumed = options_for(format);
    resumed.resume = true;
    (void)checkpoint::consolidate(world_, plan(), out(), resumed);

    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
    if (format == "safetensors") {
      EXPECT_EQ(state(), "new") << visit;
    } else {
      (void)checkpoint::consolidate(world_, checkpoint::MergePlan::make(world_, out()), folder_.path() / "again",
                                    {.force = true});
      EXPECT_EQ(difference(new_, read_checkpoint(folder_.path() / "again", true)), "");
    }
  }
}

TEST_P(Killed, succeeds_when_resumed_without_force) {
  std::string const point(GetParam());
  for (std::string const format : {"safetensors", "torch"}) {
    if (format == "safetensors" && point == "checkpoint.file.sealed") continue;
    if (point == "checkpoint.commit.moved_old") return;  // there is no old checkpoint to move
    fs::remove_all(out());
    kill_at(point, 1, format);
    auto options = options_for(format);
    options.force = false;
    options.resume = true;

    auto const summary = checkpoint::consolidate(world_, plan(), out(), options);

    EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
    EXPECT_GE(summary.files, 2);
    if (format == "safetensors") {
      EXPECT_EQ(state(), "new");
    }
    // A second resume finds the complete result.
    EXPECT_EQ(checkpoint::consolidate(world_, plan(), out(), options).resumed_files, summary.files);
  }
}

TEST_F(Interrupted, commits_module_folders_completely) {
  fs::create_directories(in() / "1_Pooling");
  std::ofstream(in() / "1_Pooling" / "config.json") << "{}";
  std::ofstream(in() / "modules.json") << R"([{"path": "1_Pooling"}])";
  for (int visit = 1; visit <= 8; ++visit) {
    put_old();
    kill_at("checkpoint.commit.named", visit);
    auto options = options_for("safetensors");
    options.resume = true;

    (void)checkpoint::consolidate(world_, plan(), out(), options);

    EXPECT_EQ(state(), "new");
    EXPECT_EQ(test::text_of_file(out() / "1_Pooling" / "config.json"), "{}") << visit;
  }
}

TEST_F(Interrupted, does_not_mistake_another_checkpoint_for_its_result) {
  auto options = options_for("safetensors");
  fs::remove_all(out());
  (void)checkpoint::consolidate(world_, plan(), out(), options);
  options.force = false;
  EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), options), UsageError) << "without --resume";
  options.resume = true;
  for (auto const& name : names_in(out())) {
    auto const text = test::text_of_file(out() / name);
    auto changed = text;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    std::ofstream(out() / name, std::ios::binary) << changed;
    EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), options), UsageError) << name;
    std::ofstream(out() / name, std::ios::binary) << text + "x";
    EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), options), UsageError) << name;
    std::ofstream(out() / name, std::ios::binary) << text;
  }
  EXPECT_NO_THROW((void)checkpoint::consolidate(world_, plan(), out(), options));
  std::ofstream(out() / "stray.safetensors") << "x";
  EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), options), UsageError);
}

std::vector<std::string_view> checkpoint_points() {
  std::vector<std::string_view> points;
  for (auto const point : test::crash_points) {
    if (point.starts_with("checkpoint.")) points.push_back(point);
  }
  return points;
}

INSTANTIATE_TEST_SUITE_P(All, Killed, testing::ValuesIn(checkpoint_points()), [](auto const& tested) {
  std::string name(tested.param);
  for (auto& c : name) c = c == '.' ? '_' : c;
  return name;
});

TEST_F(Interrupted, continues_from_finished_files_only_with_resume) {
  for (bool const resume : {true, false}) {
    put_old();
    kill_at("checkpoint.job.marked", 3);
    auto options = options_for("");
    options.resume = resume;

    auto const summary = checkpoint::consolidate(world_, plan(), out(), options);

    // Another thread may have finished its file at the same time.
    EXPECT_TRUE(resume ? summary.resumed_files >= 3 : summary.resumed_files == 0) << summary.resumed_files;
    EXPECT_EQ(state(), "new");
  }
}

TEST_F(Interrupted, does_not_resume_from_an_archive_with_a_changed_directory) {
  put_old();
  kill_at("checkpoint.job.marked", 1, "torch");
  int changed = 0;
  for (auto const& entry : fs::recursive_directory_iterator(out())) {
    if (!fs::exists(entry.path().parent_path() / (".finished." + entry.path().filename().string()))) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-30, std::ios::end).put('\x7f');
    ++changed;
  }
  ASSERT_GE(changed, 1);
  auto options = options_for("torch");
  options.resume = true;

  EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), options), IoError);

  EXPECT_EQ(state(), "old");
}

TEST_F(Interrupted, throws_when_inputs_change_during_the_read) {
  auto const merge = plan();
  std::fstream file(in() / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('\x7f');
  file.close();

  EXPECT_THROW((void)checkpoint::consolidate(world_, merge, out(), options_for("")), FormatError);

  EXPECT_EQ(state(), "old");
}

TEST_F(Interrupted, does_not_resume_from_files_of_inputs_that_changed_and_were_restored) {
  auto const shard = in() / "model.safetensors";
  auto const bytes = test::text_of_file(shard);
  auto const time = fs::last_write_time(shard);
  auto options = options_for("safetensors");
  options.resume = true;
  auto const merge = plan();
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('\x7f');
  file.close();
  fs::last_write_time(shard, time + std::chrono::seconds(2));
  EXPECT_THROW((void)checkpoint::consolidate(world_, merge, out(), options), FormatError);
  EXPECT_EQ(state(), "old");

  std::ofstream(shard, std::ios::binary) << bytes;
  fs::last_write_time(shard, time);
  EXPECT_EQ(checkpoint::consolidate(world_, plan(), out(), options).resumed_files, 0);

  EXPECT_EQ(state(), "new");
}

TEST_F(Interrupted, never_replaces_the_inputs) {
  auto const rank = folder_.path() / "ranks" / "rank_0";
  fs::create_directories(rank);
  fs::copy_file(in() / "model.safetensors", rank / "model.safetensors");
  auto const plan = checkpoint::MergePlan::make(world_, folder_.path() / "ranks");
  EXPECT_THROW((void)checkpoint::consolidate(world_, plan, rank, {.force = true}), UsageError);

  fs::create_directories(folder_.path() / "links");
  fs::create_symlink(in() / "model.safetensors", folder_.path() / "links" / "model.safetensors");
  auto const linked = checkpoint::MergePlan::make(world_, folder_.path() / "links");
  EXPECT_THROW((void)checkpoint::consolidate(world_, linked, in(), {.force = true}), UsageError);

  EXPECT_EQ(difference(new_, read_model(in())), "");
}

// The parts keep their sizes and are changed in place, so neither the folder nor any file size shows the change.
TEST_F(Interrupted, does_not_resume_from_files_of_other_inputs) {
  auto const put = [&](unsigned seed) {
    auto const changed = test::sample_weights(4, 16, 16, seed);
    for (std::size_t part = 1; part <= 2; ++part) {
      StateDict mine;
      std::size_t i = 0;
      for (auto const& [name, tensor] : changed) {
        if (i++ % 2 + 1 == part) mine.insert_or_assign(name, tensor);
      }
      fs::remove(folder_.path() / "part.tmp");
      save_safetensors(folder_.path() / "part.tmp", mine);
      auto const to = in() / ("model-0000" + std::to_string(part) + "-of-00002.safetensors");
      std::ofstream(to, std::ios::binary) << std::ifstream(folder_.path() / "part.tmp", std::ios::binary).rdbuf();
    }
  };
  fs::remove(in() / "model.safetensors");
  put(1);
  kill_at("checkpoint.job.marked", 3);
  put(5);
  auto options = options_for("safetensors");
  options.resume = true;

  (void)checkpoint::consolidate(world_, plan(), out(), options);

  EXPECT_EQ(difference(read_model(in()), read_checkpoint(out(), true)), "");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

TEST_F(Interrupted, keeps_the_old_checkpoint_until_the_job_is_resumed_or_dropped) {
  kill_at("checkpoint.commit.moved_old", 2);
  ASSERT_EQ(state(), "none");

  EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), out(), {.max_shard_bytes = 2200}), UsageError);
  (void)checkpoint::consolidate(world_, plan(), out(), options_for("safetensors"));

  EXPECT_EQ(state(), "new");
  EXPECT_THAT(names_in(out()), Each(Not(StartsWith("."))));
}

TEST_F(Interrupted, is_removed_by_clean_jobs) {
  kill_at("checkpoint.job.marked", 1);

  ASSERT_EQ(checkpoint::clean_jobs(out(), {.dry_run = true}).size(), 1U);
  EXPECT_THAT(names_in(out()), testing::Contains(StartsWith(".crossrank-")));
  ASSERT_EQ(checkpoint::clean_jobs(out()).size(), 1U);

  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(state(), "old");
}

TEST_F(Interrupted, is_committed_by_clean_jobs_after_its_commit_has_begun) {
  for (auto const* const step :
       {"checkpoint.commit.planned", "checkpoint.commit.moved_old", "checkpoint.commit.done"}) {
    put_old();
    kill_at(step, 1);
    auto const would = checkpoint::clean_jobs(out(), {.dry_run = true});
    ASSERT_EQ(would.size(), 1U) << step;
    EXPECT_TRUE(would.front().removed && would.front().was_committing) << step;
    EXPECT_THAT(names_in(out()), testing::Contains(StartsWith(".crossrank-"))) << step;

    auto const cleaned = checkpoint::clean_jobs(out());

    ASSERT_EQ(cleaned.size(), 1U) << step;
    EXPECT_TRUE(cleaned.front().removed) << step;
    EXPECT_EQ(state(), "new") << step;
    EXPECT_THAT(names_in(out()), Each(Not(StartsWith(".")))) << step;
  }
}

class FailingSystem : public Interrupted, public testing::WithParamInterface<Fault> {};

TEST_P(FailingSystem, either_fails_and_keeps_the_old_checkpoint_or_succeeds) {
  auto options = options_for("");
  options.threads = 1;
  auto const merge = plan();
  int uses = 0;
  for (int nth = 1; nth == 1 || nth <= uses; ++nth) {
    put_old();
    test::FaultySystem os;
    os.fail(GetParam().call, nth, GetParam().error);
    bool failed = false;
    {
      platform::ScopedSystem const scope(os);
      try {
        (void)checkpoint::consolidate(world_, merge, out(), options);
      } catch (Error const& error) {
        failed = true;
        EXPECT_FALSE(error.info().message.empty() && error.info().system.empty()) << error.what();
      }
    }
    uses = os.uses(GetParam().call);
    EXPECT_EQ(state(), failed ? "old" : "new")
        << test::call_names.at(as_index(GetParam().call)) << " use " << nth << " of " << uses;
    if (HasFailure()) return;
    // Reads and writes in the middle of the job behave alike.
    if (nth == 12 && uses > 24) nth = uses - 12;
  }
  EXPECT_GT(uses, 0);
}

INSTANTIATE_TEST_SUITE_P(All, FailingSystem,
                         testing::Values(Fault{Call::openat, EACCES}, Fault{Call::pread, EIO},
                                         Fault{Call::pwrite, ENOSPC}, Fault{Call::pwrite, EDQUOT},
                                         Fault{Call::fsync, EIO}, Fault{Call::fstat, ESTALE}, Fault{Call::fstatat, EIO},
                                         Fault{Call::unlinkat, EIO}, Fault{Call::fallocate, ENOSPC},
                                         Fault{Call::close, EIO}, Fault{Call::mkdirat, EROFS}),
                         [](auto const& tested) { return name_of(tested.param); });

TEST_F(Interrupted, loses_nothing_to_short_transfers) {
  test::FaultySystem os;
  os.limit_transfers(100);
  platform::ScopedSystem const scope(os);

  (void)checkpoint::consolidate(world_, plan(), out(), options_for(""));

  EXPECT_EQ(state(), "new");
}

TEST_F(Interrupted, restores_the_old_checkpoint_if_a_rename_fails) {
  int failures = 0;
  for (int nth = 1; nth <= 8; ++nth) {
    put_old();
    test::FaultySystem os;
    os.fail(Call::renameat, nth, EIO);
    platform::ScopedSystem const scope(os);
    bool failed = false;
    try {
      (void)checkpoint::consolidate(world_, plan(), out(), options_for(""));
    } catch (IoError const&) {
      failed = true;
      ++failures;
    }
    EXPECT_EQ(state(), failed ? "old" : "new") << nth;
  }
  EXPECT_GT(failures, 0);
}

CROSSRANK_RANK_SCENARIO(consolidate_within_memory) {
  auto const world = connect({.backend = "fake"});
  auto const plan = checkpoint::MergePlan::make(world, self.arguments.at(0));
  (void)checkpoint::consolidate(world, plan, self.arguments.at(1), {.threads = 4});
  struct rusage used {};
  ::getrusage(RUSAGE_SELF, &used);
  self.say("peak " + std::to_string(used.ru_maxrss / 1024));
  return used.ru_maxrss / 1024 <= 256 ? 0 : 1;
}

TEST(Memory, stays_bounded_for_a_tensor_larger_than_the_limit) {
  TemporaryDirectory const folder;
  constexpr std::int64_t rows = 1024;
  constexpr std::int64_t columns = 262'144;
  fs::create_directories(folder.path() / "in");
  for (int rank = 0; rank < 2; ++rank) {
    auto text = Json{{"model.layers.0.mlp.down_proj.weight",
                      {{"dtype", "I8"}, {"shape", {rows, columns}}, {"data_offsets", {0, rows * columns}}}}}
                    .dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::uint64_t const length = text.size();
    auto const path = folder.path() / "in" / ("rank" + std::to_string(rank) + ".safetensors");
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<char const*>(&length), sizeof length);
    file << text;
    file.close();
    fs::resize_file(path, sizeof length + text.size() + static_cast<std::uint64_t>(rows * columns));
  }
  std::ofstream(folder.path() / "in" / "config.json")
      << Json{{"num_hidden_layers", 1}, {"hidden_size", rows}, {"intermediate_size", 2 * columns}};

  auto const outcome =
      test::run_ranks(1, "consolidate_within_memory", {.arguments = {folder.path() / "in", folder.path() / "out"}});

  EXPECT_TRUE(outcome.ok()) << outcome.text();
  EXPECT_GT(fs::file_size(folder.path() / "out" / "model.safetensors"), std::uint64_t{512} << 20);
}

}  // namespace
}  // namespace crossrank
