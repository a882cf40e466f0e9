// A job that was killed during its commit is resumed, or another job runs in its output. Whatever fails then, neither
// the old checkpoint nor finished files are lost, and files of users stay.
#include <array>
#include <barrier>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/checkpoint/write/interrupted.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"
#include "workspace/checkpoint/write/job/job_folder.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::Call;
using test::names_in;
using test::options_for;
using test::text_of_file;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ResumedJob : public test::Interrupted {
 protected:
  void consolidate(checkpoint::ConsolidateOptions const& options) const {
    (void)checkpoint::consolidate(world_, plan(), out(), options);
  }

  /// Expects a resumed commit to succeed while no file can be created, so that it can only use existing files.
  void bring_to_its_end() const {
    auto const merge = plan();
    test::FaultySystem os;
    os.fail_always(Call::fallocate, ENOSPC);
    platform::ScopedSystem const scope(os);
    (void)checkpoint::consolidate(world_, merge, out(), options_for("safetensors"));
  }

  void expect_nothing_hidden() const { EXPECT_THAT(names_in(out()), Each(Not(StartsWith(".")))); }
};

class FailingAgain : public ResumedJob, public testing::WithParamInterface<Call> {};

TEST_P(FailingAgain, keeps_both_checkpoints_when_the_second_attempt_fails) {
  kill_at("checkpoint.commit.moved_old", 2);
  ASSERT_EQ(state(), "none");
  auto const saved = folder_.path() / "saved";
  fs::copy(out(), saved, fs::copy_options::recursive);
  auto const merge = plan();
  int uses = 0;
  for (int nth = 1; nth == 1 || nth <= uses; ++nth) {
    fs::remove_all(out());
    fs::copy(saved, out(), fs::copy_options::recursive);
    test::FaultySystem os;
    os.fail(GetParam(), nth, EIO);
    bool failed = false;
    {
      platform::ScopedSystem const scope(os);
      try {
        (void)checkpoint::consolidate(world_, merge, out(), options_for("safetensors"));
      } catch (IoError const&) {
        failed = true;
      }
    }
    uses = os.uses(GetParam());
    SCOPED_TRACE("use " + std::to_string(nth) + " of " + std::to_string(uses));
    if (failed) {
      ASSERT_EQ(state(), "none");
      ASSERT_NO_THROW(bring_to_its_end());
      expect_nothing_hidden();
    }
    ASSERT_EQ(state(), "new");
  }
  EXPECT_GT(uses, 0);
}

INSTANTIATE_TEST_SUITE_P(All, FailingAgain,
                         testing::Values(Call::renameat, Call::fsync, Call::fstatat, Call::openat, Call::unlinkat),
                         [](auto const& tested) { return std::string(test::call_names.at(as_index(tested.param))); });

TEST_F(ResumedJob, commits_every_requested_file_after_a_new_one_appeared) {
  for (bool const again : {false, true}) {
    put_old();
    fs::remove(in() / "vocabulary.json");
    kill_at("checkpoint.commit.moved_old", 1);
    std::ofstream(in() / "vocabulary.json") << "[1]";
    auto resumed = options_for("safetensors");
    resumed.resume = true;
    EXPECT_THROW(consolidate(resumed), FormatError);
    ASSERT_FALSE(left_folder().empty());

    if (again) {
      consolidate(options_for("safetensors"));
    } else {
      fs::remove(in() / "vocabulary.json");
      consolidate(resumed);
    }

    EXPECT_EQ(state(), "new");
    EXPECT_EQ(fs::exists(out() / "vocabulary.json"), again);
    expect_nothing_hidden();
  }
}

TEST_F(ResumedJob, throws_when_a_file_of_the_job_is_missing) {
  kill_at("checkpoint.commit.moved_old", 1);
  auto const left = left_folder() / "tokenizer.json";
  ASSERT_TRUE(fs::exists(left));
  fs::rename(left, folder_.path() / "tokenizer.json");

  EXPECT_THROW(consolidate(options_for("safetensors")), FormatError);

  ASSERT_TRUE(fs::exists(left.parent_path()));
  fs::rename(folder_.path() / "tokenizer.json", left);
  bring_to_its_end();
  EXPECT_EQ(state(), "new");
}

TEST_F(ResumedJob, rejects_a_damaged_or_escaping_commit_record) {
  kill_at("checkpoint.commit.moved_old", 1);
  auto const note = left_folder() / ".committing";
  auto const whole = text_of_file(note);
  std::ofstream(folder_.path() / "elsewhere") << "kept";
  for (std::string const text :
       {"", "{", "[]", "{}", R"({"old": [], "new": 1})", R"({"old": [1], "new": []})",
        R"({"old": ["../elsewhere"], "new": []})", R"({"old": [], "new": [".."]})",
        R"({"old": ["a/../../elsewhere"], "new": []})", R"({"old": [], "new": ["/elsewhere"]})",
        R"({"old": [""], "new": []})", R"({"old": ["..\u0000/elsewhere"], "new": []})"}) {
    std::ofstream(note) << text;
    for (auto const& wanted :
         {options_for("safetensors"), checkpoint::ConsolidateOptions{.max_shard_bytes = 2200, .force = true}}) {
      try {
        consolidate(wanted);
        ADD_FAILURE() << text;
      } catch (FormatError const& e) {
        EXPECT_THAT(e.info().hint, HasSubstr(".old.")) << text;
      }
    }
  }
  EXPECT_EQ(text_of_file(folder_.path() / "elsewhere"), "kept");
  std::ofstream(note) << whole;
  bring_to_its_end();
  EXPECT_EQ(state(), "new");
}

TEST_F(ResumedJob, rejects_a_damaged_record_of_a_finished_file) {
  auto resumed = options_for("safetensors");
  resumed.resume = true;
  for (auto const* text : {"", "[]", "{}", R"({"digests": 1, "seals": []})", R"({"digests": [1], "seals": []})"}) {
    kill_at("checkpoint.job.marked", 1);
    for (auto const& name : names_in(left_folder())) {
      if (name.starts_with(".finished.")) std::ofstream(left_folder() / name) << text;
    }
    EXPECT_THROW(consolidate(resumed), FormatError) << text;
    EXPECT_EQ(state(), "old") << text;
    fs::remove_all(left_folder());
  }
  consolidate(options_for("safetensors"));
  EXPECT_EQ(state(), "new");
}

TEST_F(ResumedJob, rewrites_a_file_when_only_its_marker_exists) {
  kill_at("checkpoint.job.marked", 1);
  int removed = 0;
  for (auto const& name : names_in(left_folder())) {
    if (name.ends_with(".safetensors") && !name.starts_with(".") && fs::remove(left_folder() / name)) ++removed;
  }
  ASSERT_GE(removed, 1);
  auto resumed = options_for("safetensors");
  resumed.resume = true;

  consolidate(resumed);

  EXPECT_EQ(state(), "new");
  expect_nothing_hidden();
}

// A scheduler that preempts a job sends SIGTERM first. A resumed job once removed all finished files then.
TEST_F(ResumedJob, keeps_finished_files_when_it_is_cancelled) {
  kill_at("checkpoint.job.marked", 1);
  auto const finished = names_in(left_folder());
  auto resumed = options_for("safetensors");
  resumed.resume = true;
  std::stop_source stop;
  stop.request_stop();
  resumed.stop = stop.get_token();

  EXPECT_THROW(consolidate(resumed), CancelledError);
  EXPECT_THAT(names_in(left_folder()), testing::IsSupersetOf(finished));

  resumed.stop = {};
  consolidate(resumed);
  EXPECT_EQ(state(), "new");
  expect_nothing_hidden();
}

class NextJob : public ResumedJob {
 protected:
  /// Runs another job for the same output, which finds no space.
  void fail_another() const {
    auto const merge = plan();
    test::FaultySystem os;
    os.fail_always(Call::fallocate, ENOSPC);
    platform::ScopedSystem const scope(os);
    EXPECT_THROW((void)checkpoint::consolidate(world_, merge, out(), {.max_shard_bytes = 2200, .force = true}),
                 IoError);
  }
};

TEST_F(NextJob, finishes_the_commit_of_a_killed_job_first) {
  for (auto const* point : {"checkpoint.commit.planned", "checkpoint.commit.moved_old", "checkpoint.commit.named",
                            "checkpoint.commit.done"}) {
    put_old();
    kill_at(point, 1);

    EXPECT_THROW(consolidate({.max_shard_bytes = 2200}), UsageError) << point;
    fail_another();

    EXPECT_EQ(state(), "new") << point;
    expect_nothing_hidden();
  }
}

TEST_F(NextJob, loses_nothing_when_finishing_that_commit_fails) {
  kill_at("checkpoint.commit.moved_old", 2);
  auto const merge = plan();
  for (int nth = 1; nth <= 3; ++nth) {
    test::FaultySystem os;
    os.fail(Call::renameat, nth, EIO);
    platform::ScopedSystem const scope(os);
    EXPECT_THROW((void)checkpoint::consolidate(world_, merge, out(), {.max_shard_bytes = 2200, .force = true}),
                 IoError);
    ASSERT_EQ(state(), "none");
  }
  bring_to_its_end();
  EXPECT_EQ(state(), "new");
}

CROSSRANK_RANK_SCENARIO(save_until_moved) {
  auto const world = connect({.backend = "fake"});
  platform::arm_crash_point("checkpoint.commit.moved_old", 2);
  (void)checkpoint::save_sharded(world, test::sample_weights(3, 8, 8, 3), self.arguments.at(0),
                                 {.config = {{"num_hidden_layers", 3}}, .force = true});
  return 0;
}

TEST_F(NextJob, keeps_the_weights_of_a_killed_save) {
  auto const killed = test::run_ranks(1, "save_until_moved", {.arguments = {out()}});
  ASSERT_EQ(killed.ranks.at(0).signal, SIGKILL) << killed.text();
  ASSERT_EQ(state(), "none");
  auto const other = test::sample_weights(2, 8, 8, 4);

  EXPECT_THROW((void)checkpoint::save_sharded(world_, other, out()), UsageError);
  {
    test::FaultySystem os;
    os.fail_always(Call::fallocate, ENOSPC);
    platform::ScopedSystem const scope(os);
    EXPECT_THROW((void)checkpoint::save_sharded(world_, other, out(), {.force = true}), IoError);
  }

  std::ofstream(in() / "config.json") << R"({"num_hidden_layers": 3})";
  save_safetensors(folder_.path() / "expected.safetensors", test::sample_weights(3, 8, 8, 3));
  EXPECT_EQ(test::difference(test::read_model(folder_.path() / "expected.safetensors"), test::read_model(out())), "");
  EXPECT_TRUE(fs::exists(out() / "config.json"));
  expect_nothing_hidden();
}

TEST_F(ResumedJob, copies_sidecar_files_of_any_name) {
  auto const names = {"old.config.json", "old.tokenizer.json", "lock", "committing",
                      "model-00001-of-00005.safetensors.finished"};
  for (std::string const name : names) std::ofstream(in() / name) << "companion " << name;

  for (int time = 0; time < 2; ++time) consolidate(options_for("safetensors"));

  for (std::string const name : names) EXPECT_EQ(text_of_file(out() / name), "companion " + name);
  EXPECT_EQ(state(), "new");
  expect_nothing_hidden();
}

/// A loader that finds the config of an adapter wants its weights, too.
TEST_F(ResumedJob, copies_an_adapter_with_its_weights) {
  for (auto const* name : {"adapter_config.json", "adapter_model.safetensors"}) std::ofstream(in() / name) << "adapter";

  consolidate({.force = true});

  for (auto const* name : {"adapter_config.json", "adapter_model.safetensors"})
    EXPECT_EQ(text_of_file(out() / name), "adapter") << name;
  EXPECT_EQ(state(), "new");
}

TEST_F(ResumedJob, copies_no_backups_and_no_weights_of_other_programs) {
  auto const names = {"tf_model.h5", "flax_model.msgpack", "config.json.bak", "tokenizer.json~"};
  for (std::string const name : names) std::ofstream(in() / name) << name;
  std::ofstream(in() / "merges.txt") << "a b";

  consolidate({.force = true});

  for (auto const* name : names) EXPECT_FALSE(fs::exists(out() / name)) << name;
  EXPECT_TRUE(fs::exists(out() / "merges.txt"));
}

TEST_F(ResumedJob, replaces_the_description_of_the_quantization_with_the_weights) {
  fs::create_directories(out());
  auto const names = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"};
  for (auto const* name : names) std::ofstream(out() / name) << R"({"quant_algo": "FP8"})";
  std::ofstream(out() / "notes.json") << "{}";
  std::ofstream(in() / "quant_config.json") << R"({"quant_algo": "W4A16"})";

  consolidate({.force = true});

  EXPECT_FALSE(fs::exists(out() / "hf_quant_config.json"));
  EXPECT_FALSE(fs::exists(out() / "quantize_config.json"));
  EXPECT_EQ(text_of_file(out() / "quant_config.json"), R"({"quant_algo": "W4A16"})");
  EXPECT_TRUE(fs::exists(out() / "notes.json"));
}

/// The folder of a job that has not locked it yet looks like that of a dead job.
TEST_F(ResumedJob, is_refused_or_succeeds_when_another_job_starts_at_the_same_time) {
  // Each thread needs its own group: `connect` gives the whole process one.
  auto const write = [&](Collective const& group, int max_shard_bytes) {
    try {
      auto const plan = checkpoint::MergePlan::make(group, in());
      (void)checkpoint::consolidate(group, plan, out(),
                                    {.max_shard_bytes = static_cast<std::uint64_t>(max_shard_bytes), .force = true});
    } catch (UsageError const& error) {
      EXPECT_THAT(error.info().message, HasSubstr("another job is writing"));
    } catch (Error const& error) {
      ADD_FAILURE() << error.what();
    }
  };
  auto const others_group = world_.split({{0}}, "other");
  for (int round = 0; round < 40; ++round) {
    std::thread other([&] { write(others_group, 2000 + round); });
    write(world_, 3000 + round);
    other.join();
    expect_nothing_hidden();
  }
}

TEST(JobFolder, begins_exactly_one_of_several_jobs_that_start_at_once) {
  constexpr std::size_t jobs = 4;
  test::TemporaryDirectory const folder;
  for (int round = 0; round < 200; ++round) {
    std::barrier together(jobs);
    std::array<std::string, jobs> outcomes;
    std::vector<std::thread> threads;
    for (std::size_t job = 0; job < jobs; ++job) {
      threads.emplace_back([&, job] {
        checkpoint::JobRequest const request{.out = folder.path() / "made" / "out",
                                             .id = "0123456789abcde" + std::to_string(job),
                                             .names = {"model.safetensors"}};
        together.arrive_and_wait();
        try {
          auto begun = checkpoint::JobFolder::make(request);
          outcomes.at(job) = "begins";
          together.arrive_and_wait();
          begun.remove();
        } catch (Error const& error) {
          outcomes.at(job) = error.info().message;
          together.arrive_and_wait();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_THAT(outcomes, testing::UnorderedElementsAre("begins", HasSubstr("another job"), HasSubstr("another job"),
                                                        HasSubstr("another job")));
    fs::remove_all(folder.path() / "made");  // a refused job may have made it, and the one that begins only used it
  }
}

TEST_F(ResumedJob, keeps_what_a_trainer_saved_beside_the_old_checkpoint) {
  fs::create_directories(out());
  auto const kept = {"optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin",
                     "adapter_model.safetensors"};
  auto const replaced = {"model-00009-of-00009.safetensors", "other.pt", "rank7.safetensors"};
  for (auto const* name : kept) std::ofstream(out() / name) << "mine";
  for (auto const* name : replaced) std::ofstream(out() / name) << "old";

  consolidate({.force = true});

  for (auto const* name : kept) EXPECT_EQ(text_of_file(out() / name), "mine") << name;
  for (auto const* name : replaced) EXPECT_FALSE(fs::exists(out() / name)) << name;
  EXPECT_EQ(checkpoint::MergePlan::make(world_, out()).tensors().size(), plan().tensors().size());
}

TEST_F(ResumedJob, makes_an_output_that_it_can_use_whatever_the_umask) {
  fs::remove_all(out());
  auto const before = ::umask(0);
  consolidate({});
  ::umask(before);
  EXPECT_EQ(state(), "new");
}

TEST_F(ResumedJob, keeps_folders_named_like_weight_files) {
  fs::create_directories(out() / "epoch1.pt");
  std::ofstream(out() / "epoch1.pt" / "mine") << "mine";

  consolidate(options_for("safetensors"));
  EXPECT_EQ(state(), "new");
  EXPECT_EQ(text_of_file(out() / "epoch1.pt" / "mine"), "mine");
  expect_nothing_hidden();

  for (auto const& name : names_in(out())) {
    if (name != "epoch1.pt") fs::remove(out() / name);
  }
  consolidate({});
  EXPECT_EQ(state(), "new");
  EXPECT_EQ(text_of_file(out() / "epoch1.pt" / "mine"), "mine");
}

TEST_F(ResumedJob, throws_before_writing_when_a_folder_has_an_output_name) {
  fs::create_directories(out() / "tokenizer.json");
  auto const before = names_in(out());
  auto const merge = plan();
  test::FaultySystem os;
  platform::ScopedSystem const scope(os);

  for (bool const force : {false, true}) {
    try {
      (void)checkpoint::consolidate(world_, merge, out(), {.force = force});
      ADD_FAILURE() << "not refused";
    } catch (UsageError const& error) {
      if (force) {
        EXPECT_THAT(error.info().resource, testing::HasSubstr("tokenizer.json"));
      }
    }
  }

  EXPECT_EQ(os.uses(Call::pwrite), 0);
  EXPECT_EQ(names_in(out()), before);
  EXPECT_EQ(state(), "old");
}

TEST_F(ResumedJob, does_not_follow_another_users_link_as_root) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of another user";
  constexpr uid_t stranger = 4711;
  auto const theirs = folder_.path() / "theirs";
  auto const ours = folder_.path() / "ours";
  fs::create_directories(theirs);
  fs::create_directories(ours);
  fs::create_directory_symlink(ours, theirs / "link");
  ASSERT_EQ(::lchown(theirs.c_str(), stranger, stranger), 0);
  ASSERT_EQ(::lchown((theirs / "link").c_str(), stranger, stranger), 0);

  for (auto const& to : {theirs / "link", theirs / "link" / "model", theirs / "link" / "a" / "b"})
    EXPECT_THROW((void)checkpoint::consolidate(world_, plan(), to, options_for("safetensors")), Error) << to;

  EXPECT_THAT(names_in(ours), testing::IsEmpty());
}

}  // namespace
}  // namespace crossrank
