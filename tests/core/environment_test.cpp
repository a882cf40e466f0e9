#include "lib/core/environment.hpp"

#include <chrono>
#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

using Variables = std::map<std::string, std::string>;

/// Reads the variables as a program does that names neither its rank nor the world size.
Environment parse(Variables const& variables) {
  auto environment = parse_environment([&](char const* name) -> std::optional<std::string> {
    auto const found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
  environment.require_identity();
  return environment;
}

TEST(Environment, is_empty_when_no_variable_is_set) {
  auto const environment = parse({});
  EXPECT_EQ(environment.launcher, Launcher::none);
  EXPECT_FALSE(environment.announces_several());
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
}

TEST(Environment, understands_crossrank_run) {
  auto const environment = parse({{"RANK", "2"},
                                  {"WORLD_SIZE", "4"},
                                  {"CROSSRANK_JOB_ID", "j"},
                                  {"CROSSRANK_STEP", "s"},
                                  {"CROSSRANK_RESTART", "3"}});
  EXPECT_EQ(environment.launcher, Launcher::crossrank);
  EXPECT_TRUE(environment.announces_several());
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.job_id, "j");
  EXPECT_EQ(environment.step_id, "s");
  EXPECT_EQ(environment.restart, 3U);
}

TEST(Environment, detects_that_crossrank_run_listens) {
  EXPECT_FALSE(parse({}).started_by_run);
  EXPECT_TRUE(parse({{"CROSSRANK_LAUNCHER", "4711"}}).started_by_run);
}

TEST(Environment, refuses_a_launcher_that_was_started_inside_crossrank_run) {
  Variables const outer{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"CROSSRANK_JOB_ID", "j"}, {"CROSSRANK_LAUNCHER", "4711"}};
  EXPECT_EQ(parse(outer).launcher, Launcher::crossrank);
  std::map<std::string, Variables> const inner{
      {"mpirun", {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}},
      {"torchrun", {{"TORCHELASTIC_RUN_ID", "r"}}},
      {"srun", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}}};
  for (auto const& [launcher, variables] : inner) {
    auto both = outer;
    both.insert(variables.begin(), variables.end());
    try {
      static_cast<void>(parse(both));
      ADD_FAILURE() << launcher << " was accepted";
    } catch (UsageError const& e) {
      EXPECT_NE(e.info().message.find(launcher + " was started inside `crossrank run`"), std::string::npos);
      EXPECT_FALSE(e.group_usable());
    }
    // A program that sets both variables itself, without `crossrank run`, means one job.
    both.erase("CROSSRANK_LAUNCHER");
    EXPECT_EQ(parse(both).launcher, Launcher::crossrank);
  }
}

TEST(Environment, reads_the_directory_of_flight_records) {
  EXPECT_EQ(parse({}).flight_dir, "");
  EXPECT_EQ(parse({{"CROSSRANK_FLIGHT_DIR", "/var/tmp"}}).flight_dir, "/var/tmp");
}

TEST(Environment, understands_torchrun) {
  auto const environment = parse({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", "host"},
                                  {"MASTER_PORT", "29500"},
                                  {"TORCHELASTIC_RUN_ID", "r"},
                                  {"TORCHELASTIC_RESTART_COUNT", "1"}});
  EXPECT_EQ(environment.launcher, Launcher::torchrun);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_addr, "host");
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_EQ(environment.job_id, "r");
  EXPECT_EQ(environment.restart, 1U);
}

TEST(Environment, understands_open_mpi) {
  auto const environment = parse({{"OMPI_COMM_WORLD_RANK", "3"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_NAMESPACE", "ns"},
                                  {"PMIX_RANK", "3"}});
  EXPECT_EQ(environment.launcher, Launcher::open_mpi);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.job_id, "ns");
  EXPECT_EQ(environment.pmix_rank, 3);
}

TEST(Environment, understands_slurm_only_inside_a_step) {
  Variables variables{{"SLURM_PROCID", "1"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_ID", "77"},
                      {"SLURM_NNODES", "2"}};
  EXPECT_EQ(parse(variables).launcher, Launcher::none);
  variables["SLURM_STEP_ID"] = "0";
  auto const environment = parse(variables);
  EXPECT_EQ(environment.launcher, Launcher::slurm);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.nodes, 2);
  EXPECT_EQ(environment.job_id, "77");
  EXPECT_EQ(environment.step_id, "0");
}

TEST(Environment, counts_the_tasks_of_the_step_rather_than_of_the_job) {
  Variables variables{
      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  EXPECT_EQ(parse(variables).world_size, 2);
  variables.erase("SLURM_NTASKS");
  EXPECT_EQ(parse(variables).world_size, 2);
}

/// A rank that ignored half an identity would believe that it is alone.
TEST(Environment, refuses_half_an_identity) {
  EXPECT_THROW(static_cast<void>(parse({{"OMPI_COMM_WORLD_RANK", "1"}})), UsageError);
  EXPECT_THROW(static_cast<void>(parse({{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}})), UsageError);
}

/// A program that names rank and world size itself still wants its settings.
TEST(Environment, reads_the_settings_beside_an_unusable_identity) {
  for (Variables const& variables : {Variables{{"WORLD_SIZE", "2"}}, Variables{{"RANK", "one"}, {"WORLD_SIZE", "2"}},
                                     Variables{{"PMIX_RANK", "x"}}, Variables{{"SLURM_NNODES", "x"}}}) {
    auto const environment = parse_environment([&](char const* name) -> std::optional<std::string> {
      auto const found = variables.find(name);
      if (found != variables.end()) return found->second;
      return std::string(name) == "CROSSRANK_TIMEOUT" ? std::optional<std::string>("5") : std::nullopt;
    });
    EXPECT_EQ(environment.timeout, std::chrono::seconds(5));
    EXPECT_EQ(environment.launcher, Launcher::none);
    EXPECT_THROW(environment.require_identity(), UsageError) << variables.begin()->first;
  }
}

TEST(Environment, refuses_impossible_local_ranks) {
  Variables const base{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  for (auto const& [rank, size] :
       std::vector<std::pair<std::string, std::string>>{{"0", "4"}, {"2", "2"}, {"0", "0"}}) {
    auto variables = base;
    variables["LOCAL_RANK"] = rank;
    variables["LOCAL_WORLD_SIZE"] = size;
    EXPECT_THROW(static_cast<void>(parse(variables)), UsageError) << rank << " of " << size;
  }
}

TEST(Environment, takes_the_whole_identity_from_one_launcher) {
  auto const environment =
      parse({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(environment.launcher, Launcher::plain);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_FALSE(environment.announces_several());
}

TEST(Environment, reads_sizes_and_times_with_suffixes) {
  EXPECT_EQ(parse({{"CROSSRANK_ARENA_CAP", "123"}}).arena_cap, 123U);
  EXPECT_EQ(parse({{"CROSSRANK_ARENA_CAP", "3G"}}).arena_cap, 3ULL << 30);
  EXPECT_EQ(parse({{"CROSSRANK_ARENA_CAP", "256MiB"}}).arena_cap, 256ULL << 20);
  EXPECT_EQ(parse({{"CROSSRANK_TIMEOUT", "5"}}).timeout, std::chrono::seconds(5));
  EXPECT_EQ(parse({{"CROSSRANK_TIMEOUT", "250ms"}}).timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(parse({{"CROSSRANK_TIMEOUT", "2h"}}).timeout, std::chrono::hours(2));
  EXPECT_EQ(parse({{"CROSSRANK_TIMEOUT", "9000000000000"}}).timeout, std::chrono::hours(24 * 36'500));
  EXPECT_EQ(parse({{"CROSSRANK_CONNECT_TIMEOUT", "3m"}}).connect_timeout, std::chrono::minutes(3));
  EXPECT_EQ(parse({{"CROSSRANK_USER_LIMIT", "1h"}}).user_limit, std::chrono::hours(1));
  EXPECT_EQ(parse({{"CROSSRANK_CHECK", "collective"}}).check, CheckLevel::collective);
  EXPECT_EQ(parse({{"CROSSRANK_LOG", "off"}}).log, LogThreshold::off);
  EXPECT_EQ(parse({{"CROSSRANK_DEVICE", "staged"}}).device_transport, "staged");
  EXPECT_EQ(parse({{"CROSSRANK_BACKEND", "shm"}}).backend, "shm");
  EXPECT_FALSE(parse({{"CROSSRANK_CHECK", ""}}).check.has_value());
}

struct Malformed {
  char const* name;
  Variables variables;
};

void PrintTo(Malformed const& bad, std::ostream* out) { *out << bad.name << '=' << bad.variables.at(bad.name); }

class MalformedEnvironment : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedEnvironment, is_refused_naming_variable_and_value) {
  try {
    (void)parse(GetParam().variables);
    FAIL() << "accepted";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().resource, GetParam().name);
    EXPECT_NE(e.info().got.find(GetParam().variables.at(GetParam().name)), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Environment, MalformedEnvironment,
                         testing::Values(Malformed{"RANK", {{"RANK", "one"}, {"WORLD_SIZE", "2"}}},
                                         Malformed{"RANK", {{"RANK", "-1"}, {"WORLD_SIZE", "2"}}},
                                         Malformed{"RANK", {{"RANK", "2"}, {"WORLD_SIZE", "2"}}},
                                         Malformed{"RANK", {{"RANK", "1 "}, {"WORLD_SIZE", "2"}}},
                                         Malformed{"RANK", {{"RANK", "1"}}},
                                         Malformed{"WORLD_SIZE", {{"WORLD_SIZE", "2"}}},
                                         Malformed{"WORLD_SIZE", {{"RANK", "0"}, {"WORLD_SIZE", "0"}}},
                                         Malformed{"WORLD_SIZE", {{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}},
                                         Malformed{"MASTER_PORT", {{"MASTER_PORT", "70000"}}},
                                         Malformed{"CROSSRANK_ARENA_CAP", {{"CROSSRANK_ARENA_CAP", "3X"}}},
                                         Malformed{"CROSSRANK_ARENA_CAP", {{"CROSSRANK_ARENA_CAP", "99999999999T"}}},
                                         Malformed{"CROSSRANK_CHECK", {{"CROSSRANK_CHECK", "always"}}},
                                         Malformed{"CROSSRANK_LOG", {{"CROSSRANK_LOG", "loud"}}},
                                         Malformed{"CROSSRANK_BACKEND", {{"CROSSRANK_BACKEND", "smoke"}}},
                                         Malformed{"CROSSRANK_USER_LIMIT", {{"CROSSRANK_USER_LIMIT", "-1"}}},
                                         Malformed{"CROSSRANK_CONNECT_TIMEOUT", {{"CROSSRANK_CONNECT_TIMEOUT", "5y"}}},
                                         Malformed{"CROSSRANK_TIMEOUT", {{"CROSSRANK_TIMEOUT", "0"}}},
                                         Malformed{"CROSSRANK_TIMEOUT", {{"CROSSRANK_TIMEOUT", "soon"}}}));

}  // namespace
}  // namespace crossrank
