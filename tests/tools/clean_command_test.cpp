#include "tools/inspect/clean_command.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <crossrank/json.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/node/memory/segment_names.hpp"
#include "lib/platform/files/fd.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace {

namespace fs = std::filesystem;
using crossrank::test::run_command;
using crossrank::test::TemporaryDirectory;
using crossrank::workspace::StateFileName;
using testing::HasSubstr;

fs::path state_file(fs::path const& folder, std::uint32_t counter) {
  StateFileName const file{.rank = 3, .writer = 0x1234, .counter = counter};
  crossrank::test::leave_state(folder, file);
  return folder / file.name();
}

// Locks a file like the workspace of a running job.
crossrank::platform::Fd hold(fs::path const& path) {
  crossrank::platform::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::flock(fd.get(), LOCK_SH | LOCK_NB), 0);
  return fd;
}

TEST(Clean, removes_only_the_files_of_dead_jobs) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const alive = state_file(folder.path(), 2);
  auto const lock = hold(alive);
  auto const foreign = folder.path() / "model.safetensors";
  std::ofstream(foreign) << "somebody's";
  auto const bytes = std::to_string(fs::file_size(dead));
  auto const temporary = folder.path() / ".model.safetensors.0123456789abcdef.crossrank.tmp";
  std::ofstream(temporary) << "half";
  auto const end = run_command({"clean", folder.path().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_FALSE(fs::exists(dead)) << end.out;
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_THAT(end.out, HasSubstr("removed " + dead.string() + ", a state file, " + bytes + " bytes"));
  EXPECT_THAT(end.out, HasSubstr("removed " + temporary.string() + ", a temporary file, 4 bytes"));
  EXPECT_THAT(end.out, HasSubstr("kept " + alive.string()));
}

TEST(Clean, takes_brackets_as_a_part_of_the_name) {
  TemporaryDirectory const folder;
  auto const other = folder.path() / "d";
  auto const meant = folder.path() / "[d]";
  fs::create_directory(other);
  fs::create_directory(meant);
  auto const kept = state_file(other, 1);
  auto const removed = state_file(meant, 1);
  fs::current_path(folder.path());
  EXPECT_EQ(run_command({"clean", "[d]"}).exit_code, 0);
  fs::current_path("/");
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_FALSE(fs::exists(removed));
}

TEST(Clean, keeps_states_of_a_clean_exit_unless_all_is_given) {
  TemporaryDirectory const folder;
  {
    crossrank::NFSWorkspace workspace(folder.path(), {.rank = 3});
    workspace.write_configs_and_weights({}, {});
  }
  auto const state = fs::directory_iterator(folder.path())->path();
  auto const kept = run_command({"clean", folder.path().string()});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_TRUE(fs::exists(state)) << kept.out;
  EXPECT_THAT(kept.out, HasSubstr("--all"));
  auto const all = run_command({"clean", "--all", folder.path().string()});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_FALSE(fs::exists(state)) << all.out;
}

TEST(Clean, keeps_foreign_files_with_names_of_crossrank) {
  TemporaryDirectory const folder;
  auto const nonce = std::string(32, 'a');
  for (auto const& name :
       {StateFileName{.rank = 3, .writer = 1, .counter = 1}.name(), "crossrank.job." + nonce + ".flight",
        std::string("crossrank.notes.flight"), std::string(".notes.0123456789abcdef.tmp")}) {
    std::ofstream(folder.path() / name) << "somebody's own data";
  }
  fs::create_directory(folder.path() / ".crossrank-notes");
  std::ofstream(folder.path() / ".crossrank-notes" / "page") << "somebody's own data";
  std::ofstream(folder.path() / ".crossrank-file") << "somebody's own data";
  auto const end = run_command({"clean", "--all", "--force", folder.path().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 6) << end.out;
  EXPECT_TRUE(fs::exists(folder.path() / ".crossrank-notes" / "page")) << end.out;
  EXPECT_THAT(end.out, HasSubstr("not the folder of a job"));
  EXPECT_THAT(end.out, HasSubstr("not a state image"));
  EXPECT_THAT(end.out, HasSubstr("not a flight record"));
}

/// A rank that was killed at the start of its record.
TEST(Clean, removes_an_empty_flight_record) {
  TemporaryDirectory const folder;
  auto const record = folder.path() / "crossrank.job.0123456789abcdef0123456789abcdef.flight";
  std::ofstream(record).close();
  EXPECT_EQ(run_command({"clean", "--all", folder.path().string()}).exit_code, 0);
  EXPECT_TRUE(fs::exists(record)) << "a job may have made it just now";
  fs::last_write_time(record, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  EXPECT_EQ(run_command({"clean", "--all", folder.path().string()}).exit_code, 0);
  EXPECT_FALSE(fs::exists(record));
}

TEST(Clean, keeps_the_images_of_a_finished_checkpoint) {
  TemporaryDirectory const folder;
  auto const model = folder.path() / "model.safetensors";
  crossrank::save_safetensors(model, {{"a", crossrank::Tensor::scalar(1.5F)}});
  auto const images = folder.path() / "images";
  auto const made = run_command({"convert", model.string(), images.string(), "--to", "images"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  auto const dead = state_file(images, 1);
  auto const end = run_command({"clean", images.string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_FALSE(fs::exists(dead)) << end.out;
  EXPECT_THAT(end.out, HasSubstr("part of a finished checkpoint"));
  EXPECT_EQ(run_command({"inspect", images.string()}).exit_code, 0);
}

TEST(Clean, removes_nothing_in_a_dry_run) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const end = run_command({"clean", "--dry-run", folder.path().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(fs::exists(dead));
  EXPECT_THAT(end.out, HasSubstr("would remove " + dead.string()));
}

TEST(Clean, prints_one_json_object) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const alive = state_file(folder.path(), 2);
  auto const lock = hold(alive);
  auto const end = run_command({"clean", "--json", (folder.path() / "missing").string(), folder.path().string()});
  EXPECT_EQ(end.exit_code, 1);
  auto const answer = crossrank::Json::parse(end.out);
  EXPECT_FALSE(answer.at("ok").get<bool>());
  EXPECT_EQ(answer.at("exit_code"), 1);
  ASSERT_EQ(answer.at("errors").size(), 1U);
  std::set<std::string> removed;
  std::set<std::string> kept;
  for (auto const& found : answer.at("found"))
    (found.at("removed").get<bool>() ? removed : kept).insert(found.at("path").get<std::string>());
  EXPECT_TRUE(removed.contains(dead.string()));
  EXPECT_TRUE(kept.contains(alive.string()));
}

TEST(Clean, reports_an_unreadable_directory_and_continues) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const missing = (folder.path() / "missing").string();
  auto const end = run_command({"clean", missing, folder.path().string()});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr(missing));
  EXPECT_FALSE(fs::exists(dead));
}

TEST(Clean, removes_shared_memory_that_no_process_holds) {
  auto const orphan = "/dev/shm" + crossrank::node::unique_segment_name();
  auto const held = "/dev/shm" + crossrank::node::unique_segment_name();
  std::ofstream(orphan) << "x";
  std::ofstream(held) << "x";
  auto const lock = hold(held);
  auto const end = run_command({"clean"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_FALSE(fs::exists(orphan)) << end.out;
  EXPECT_TRUE(fs::exists(held)) << end.out;
  fs::remove(held);
}

}  // namespace
