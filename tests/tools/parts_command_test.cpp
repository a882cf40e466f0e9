// Tests crossrank plan, and crossrank consolidate with a plan, from the command line: output and exit codes.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/json.hpp>

#include "tests/tools/checkpoint_command.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::CommandEnd;
using test::difference;
using test::names_in;
using test::read_checkpoint;
using test::run_command;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class PartsCommand : public test::CheckpointCommand {
 protected:
  PartsCommand() {
    // The tests may run under a scheduler themselves.
    for (auto const* const name : {"SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE"})
      ::unsetenv(name);
  }
  [[nodiscard]] std::string file() const { return (folder_.path() / "plan.json").string(); }
  [[nodiscard]] CommandEnd plan(std::vector<std::string> const& more = {}) const {
    std::vector<std::string> arguments{"plan", shards().string(),  out().string(), "--parts", "2", "--output",
                                       file(), "--max-shard-size", "500B"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }
  [[nodiscard]] CommandEnd with_plan(std::vector<std::string> const& more) const {
    std::vector<std::string> arguments{"consolidate", "--plan", file()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }
};

TEST_F(PartsCommand, names_the_option_that_a_dry_run_needs) {
  ASSERT_EQ(plan().exit_code, 0);
  auto const end = with_plan({"--part", "0", "--dry-run"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.out + end.err, testing::HasSubstr("--finish"));
}

TEST_F(PartsCommand, refuses_a_plan_that_other_users_can_replace) {
  auto const open = folder_.path() / "open";
  std::filesystem::create_directories(open);
  ASSERT_EQ(plan().exit_code, 0);
  std::filesystem::copy_file(file(), open / "plan.json");
  std::filesystem::permissions(open, std::filesystem::perms::all);
  auto const end = run_command({"consolidate", "--plan", (open / "plan.json").string(), "--part", "0"});
  EXPECT_EQ(end.exit_code, 2) << end.err;
  EXPECT_THAT(end.err, testing::HasSubstr("other users can replace the plan"));
  std::filesystem::permissions(open, std::filesystem::perms::all | std::filesystem::perms::sticky_bit);
  EXPECT_EQ(run_command({"consolidate", "--plan", (open / "plan.json").string(), "--part", "0"}).exit_code, 0);
}

TEST_F(PartsCommand, merges_in_two_parts) {
  auto const planned = plan({"--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  auto const answer = Json::parse(planned.out);
  EXPECT_EQ(answer.at("files"), 3);
  EXPECT_EQ(answer.at("parts").size(), 2U);
  EXPECT_EQ(answer.at("plan").at("tp"), 2);

  EXPECT_EQ(with_plan({"--part", "1/2"}).exit_code, 0);
  auto const missing = with_plan({"--finish"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("1 of 2 parts are missing or damaged: 0"));
  auto const listed = with_plan({"--finish", "--dry-run", "--json"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_EQ(Json::parse(listed.out).at("missing"), Json::array({0}));

  auto const part = with_plan({"--part", "0", "--json"});
  EXPECT_EQ(Json::parse(part.out).at("part"), 0) << part.err;
  EXPECT_EQ(with_plan({"--finish", "--dry-run"}).exit_code, 0);
  auto const finished = with_plan({"--finish", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(Json::parse(finished.out).at("files"), 3);
  EXPECT_EQ(difference(whole(), read_checkpoint(out(), true)), "");
  EXPECT_EQ(with_plan({"--finish", "--read-back"}).exit_code, 0) << "again";
  EXPECT_EQ(with_plan({"--finish", "--dry-run"}).exit_code, 0) << "it is published";
}

TEST_F(PartsCommand, advises_smaller_files_only_if_the_files_become_smaller) {
  auto const model = folder_.path() / "model";
  fs::create_directories(model);
  StateDict weights;
  weights.insert_or_assign("large.weight", Tensor::zeros({1000}, Dtype::f32));
  for (int i = 0; i < 10; ++i)
    weights.insert_or_assign("small." + std::to_string(i) + ".weight", Tensor::zeros({1}, Dtype::f32));
  save_safetensors(model / "model.safetensors", weights);
  auto const planned = [&](char const* limit) {
    return run_command({"plan", model.string(), out().string(), "--parts", "3", "--output", file(), "--max-shard-size",
                        limit, "--force"})
        .err;
  };
  EXPECT_THAT(planned("100"), AllOf(HasSubstr("make fewer parts"), Not(HasSubstr("smaller --max-shard-size"))));
  EXPECT_THAT(planned("100kB"), HasSubstr("smaller --max-shard-size, such as "));
}

TEST_F(PartsCommand, takes_the_part_from_torchrun_without_connecting) {
  ASSERT_EQ(plan().exit_code, 0);
  ::setenv("WORLD_SIZE", "2", 1);
  for (auto const* const rank : {"0", "1"}) {
    ::setenv("RANK", rank, 1);
    auto const end = with_plan({});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.out, StartsWith("part " + std::string(rank) + " of 2"));
  }
  ::setenv("WORLD_SIZE", "3", 1);
  auto const other = with_plan({});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("WORLD_SIZE=3"));
  ::unsetenv("WORLD_SIZE");
  ::unsetenv("RANK");
}

TEST_F(PartsCommand, refuses_wrong_numbers_and_combinations) {
  ASSERT_EQ(plan().exit_code, 0);
  for (auto const& wrong : std::vector<std::vector<std::string>>{{},
                                                                 {"--part", "2/2"},
                                                                 {"--part", "-1"},
                                                                 {"--part", "0/3"},
                                                                 {"--part", "0/"},
                                                                 {"--part", "/2"},
                                                                 {"--part", "0x1"},
                                                                 {"--part", "0/2/2"},
                                                                 {"--part", ""},
                                                                 {"--part", "", "--finish"},
                                                                 {"--part", "0", "--finish"},
                                                                 {"--part", "0", "--force"},
                                                                 {"--part", "0", "--tp", "2"},
                                                                 {"--part", "0", "-n", "2"},
                                                                 {"--part", "0", "--read-back"},
                                                                 {"--finish", "--read-back", "--no-read-back"},
                                                                 {"--finish", "--max-shard-size", "1GB"},
                                                                 {"shards", "out"}}) {
    EXPECT_EQ(with_plan(wrong).exit_code, 2) << testing::PrintToString(wrong);
  }
  EXPECT_EQ(run_command({"consolidate", "--finish", shards().string(), out().string()}).exit_code, 2);
  EXPECT_EQ(run_command({"consolidate", shards().string()}).exit_code, 2);
  EXPECT_EQ(run_command({"consolidate", shards().string(), out().string(), "--plan", ""}).exit_code, 2);
  EXPECT_EQ(run_command({"consolidate", "--plan", "", "--part", "0"}).exit_code, 2);
  EXPECT_EQ(run_command({"plan", shards().string(), out().string(), "--parts", "2", "--output", "-"}).exit_code, 2);
  EXPECT_EQ(run_command({"plan", shards().string(), out().string(), "--parts", "0", "--output", file()}).exit_code, 2);
}

TEST_F(PartsCommand, prints_commands_that_a_shell_understands) {
  auto const file = (folder_.path() / "the plan.json").string();
  auto const end = run_command({"plan", shards().string(), out().string(), "--parts", "1", "--output", file});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("--plan '" + file + "' --finish"));
}

TEST_F(PartsCommand, suggests_more_files_only_if_the_model_has_enough_tensors) {
  auto const few = run_command(
      {"plan", shards().string(), out().string(), "--parts", "100000", "--output", file(), "--max-shard-size", "1B"});
  ASSERT_EQ(few.exit_code, 0) << few.err;
  EXPECT_THAT(few.err, AllOf(HasSubstr("make fewer parts"), Not(HasSubstr("--max-shard-size"))));
  fs::remove_all(out());
  auto const one_file = run_command({"plan", shards().string(), out().string(), "--parts", "2", "--output", file()});
  ASSERT_EQ(one_file.exit_code, 0) << one_file.err;
  EXPECT_THAT(one_file.err, HasSubstr("--max-shard-size"));
}

TEST_F(PartsCommand, may_keep_its_plan_in_the_new_output_but_not_in_the_name_of_a_directory) {
  auto const inside = (out() / "plan.json").string();
  EXPECT_EQ(
      run_command({"plan", shards().string(), out().string(), "--parts", "1", "--output", out().string()}).exit_code,
      2);
  EXPECT_FALSE(fs::exists(out()));
  auto const end = run_command({"plan", shards().string(), out().string(), "--parts", "1", "--output", inside});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(run_command({"consolidate", "--plan", inside, "--part", "0"}).exit_code, 0);
  EXPECT_EQ(run_command({"consolidate", "--plan", inside, "--finish"}).exit_code, 0);
}

TEST_F(PartsCommand, names_its_own_options_in_hints) {
  ASSERT_EQ(plan().exit_code, 0);
  EXPECT_THAT(with_plan({}).err, HasSubstr("--part"));
}

TEST_F(PartsCommand, has_an_exit_code_for_each_kind_of_error) {
  EXPECT_EQ(with_plan({"--part", "0"}).exit_code, 3) << "no such plan";
  std::ofstream(file()) << "{}";
  EXPECT_EQ(with_plan({"--part", "0"}).exit_code, 1) << "not a plan";
  ASSERT_EQ(plan().exit_code, 0) << "an old plan is replaced";
  for (auto const& entry : fs::directory_iterator(shards())) {
    fs::last_write_time(entry, fs::last_write_time(entry) + std::chrono::seconds(2));
  }
  EXPECT_EQ(with_plan({"--finish", "--dry-run"}).exit_code, 1);
  auto const changed = with_plan({"--part", "0"});
  EXPECT_EQ(changed.exit_code, 1);
  EXPECT_THAT(changed.err, HasSubstr(".safetensors"));
  fs::create_directories(out());
  std::ofstream(out() / "model.safetensors") << "old";
  EXPECT_EQ(plan().exit_code, 2) << "the output exists";
}

TEST_F(PartsCommand, leaves_parts_that_clean_keeps_and_removes_with_all) {
  ASSERT_EQ(plan().exit_code, 0);
  ASSERT_EQ(with_plan({"--part", "0"}).exit_code, 0);
  auto const kept = run_command({"clean", out().string()});
  EXPECT_THAT(kept.out, HasSubstr("--all"));
  EXPECT_THAT(names_in(out()), Contains(StartsWith(".crossrank-")));
  EXPECT_EQ(run_command({"clean", "--all", out().string()}).exit_code, 0);
  EXPECT_THAT(names_in(out()), ElementsAre());
  auto const gone = with_plan({"--part", "0"});
  EXPECT_EQ(gone.exit_code, 2) << gone.err;
}

}  // namespace
}  // namespace crossrank
