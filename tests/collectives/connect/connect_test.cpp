#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/resolve_options.hpp>

#include "collectives/connect/open_transport.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

CROSSRANK_RANK_SCENARIO(connect_by_environment) {
  auto world = connect();
  self.say(std::string(world.backend()) + " " + std::to_string(world.rank()) + "/" +
           std::to_string(world.world_size()));
  world.barrier();
  world.close();
  return 0;
}

/// Connects with the rank and size of the scenario, whatever the launchers' variables say.
CROSSRANK_RANK_SCENARIO(connect_by_options) {
  auto world = connect({.rank = self.rank, .world_size = self.world_size});
  self.say(std::to_string(world.rank()) + "/" + std::to_string(world.world_size()));
  world.barrier();
  world.close();
  return 0;
}

/// Several threads of one rank connect at the same time and get the same job.
CROSSRANK_RANK_SCENARIO(connect_in_threads) {
  std::vector<Collective> worlds(4);
  std::vector<std::thread> threads;
  for (auto& world : worlds) threads.emplace_back([&world] { world = connect(); });
  for (auto& thread : threads) thread.join();
  bool const same =
      std::ranges::all_of(worlds, [&](auto& world) { return world.transport() == worlds[0].transport(); });
  worlds[0].barrier();
  self.say(same ? "one job" : "several jobs");
  worlds[0].close();
  return 0;
}

/// A rank of a job also works alone, and makes a mistake about the size of its job.
CROSSRANK_RANK_SCENARIO(connect_alone_beside_a_job) {
  auto world = connect();
  if (self.rank == 0) {
    auto alone = connect({.backend = "fake", .rank = 0, .world_size = 1});
    alone.barrier();
    self.say(std::to_string(alone.world_size()));
    self.say(error_of<UsageError>([] { static_cast<void>(connect({.rank = 0, .world_size = 3})); }).expected);
  }
  world.barrier();
  world.close();
  return 0;
}

CROSSRANK_RANK_SCENARIO(print_resolved_options) {
  auto const options = spi::resolve_options({}, "connect");
  self.say(std::to_string(options.timeout.count()) + " " + std::to_string(options.connect_timeout.value().count()) +
           " " + std::to_string(options.user_limit.count()) + " " + options.backend);
  return 0;
}

int times_in(std::string const& text, std::string const& part) {
  int times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(Connect, uses_the_environment_variables) {
  auto const job = run_ranks(1, "print_resolved_options",
                             {.environment = {{"CROSSRANK_TIMEOUT", "5"},
                                              {"CROSSRANK_CONNECT_TIMEOUT", "250ms"},
                                              {"CROSSRANK_USER_LIMIT", "2m"},
                                              {"CROSSRANK_BACKEND", "shm"}}});
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(0).out, "5000 250 120000 shm\n");
}

TEST(Connect, uses_the_backend_of_the_environment_unless_the_program_names_one) {
  auto const job = run_ranks(1, "connect_by_environment",
                             {.environment = {{"CROSSRANK_BACKEND", "shm"}}, .launcher_variables = false});
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(0).out, "shm 0/1\n");
}

TEST(Connect, warns_once_about_an_unknown_variable) {
  auto const job = run_ranks(2, "connect_in_threads", {.environment = {{"CROSSRANK_TIMOET", "5"}}});
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(times_in(job.ranks.at(0).err, "variable CROSSRANK_TIMOET, hint did you mean CROSSRANK_TIMEOUT?"), 1)
      << job.text();
  EXPECT_EQ(times_in(job.ranks.at(1).err, "CROSSRANK_TIMOET"), 0) << job.text();
}

TEST(Connect, is_silent_when_the_log_is_off) {
  auto const job =
      run_ranks(2, "connect_in_threads", {.environment = {{"CROSSRANK_TIMOET", "5"}, {"CROSSRANK_LOG", "off"}}});
  EXPECT_TRUE(job.ok()) << job.text();
  for (auto const& rank : job.ranks) EXPECT_EQ(rank.err, "");
}

TEST(Connect, gives_concurrent_threads_the_same_job) {
  auto const job = run_ranks(2, "connect_in_threads");
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(1).out, "one job\n");
}

TEST(Connect, gives_a_rank_of_a_job_a_group_of_its_own_on_request) {
  auto const job = run_ranks(2, "connect_alone_beside_a_job");
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(0).out, "1\n2\n");
}

TEST(Connect, uses_the_variables_of_the_launcher) {
  auto const job = run_ranks(2, "connect_by_environment");
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(1).out, "shm 1/2\n");
}

/// A program may start ranks itself and inherit variables of a launcher that are wrong for them.
TEST(Connect, takes_rank_and_size_of_the_program_before_those_of_a_launcher) {
  using Variables = std::map<std::string, std::string>;
  for (auto const& variables :
       {Variables{{"WORLD_SIZE", "2"}}, Variables{{"RANK", "0"}}, Variables{{"RANK", "3"}, {"WORLD_SIZE", "2"}},
        Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "7"}, {"LOCAL_WORLD_SIZE", "8"}},
        Variables{{"OMPI_COMM_WORLD_RANK", "1"}}, Variables{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "x"}},
        Variables{{"SLURM_NNODES", "many"}}, Variables{{"PMIX_RANK", "x"}}}) {
    auto const job = run_ranks(2, "connect_by_options", {.environment = variables, .launcher_variables = false});
    EXPECT_TRUE(job.ok()) << variables.begin()->first << '\n' << job.text();
    EXPECT_EQ(job.ranks.at(0).out + job.ranks.at(1).out, "0/2\n1/2\n");
  }
}

TEST(Connect, refuses_half_an_identity_when_the_program_names_only_its_rank) {
  auto const environment = parse_environment([](char const* name) -> std::optional<std::string> {
    return std::string(name) == "WORLD_SIZE" ? std::optional<std::string>("2") : std::nullopt;
  });
  EXPECT_THROW(static_cast<void>(describe_job({.rank = 0}, environment)), UsageError);
  EXPECT_EQ(describe_job({.rank = 1, .world_size = 4, .job_id = "j"}, environment).world_size, 4);
}

TEST(Connect, is_alone_without_a_launcher) {
  auto const job = run_ranks(1, "connect_by_environment", {.launcher_variables = false});
  EXPECT_TRUE(job.ok()) << job.text();
  EXPECT_EQ(job.ranks.at(0).out, "fake 0/1\n");
}

TEST(Connect, never_falls_back_to_fake) {
  EXPECT_THAT([] { static_cast<void>(connect({.backend = "fake", .rank = 0, .world_size = 2, .job_id = "x"})); },
              testing::ThrowsMessage<UnavailableError>(HasSubstr("2 were announced")));
  EXPECT_THAT([] { static_cast<void>(connect({.backend = "smoke", .rank = 0, .world_size = 2, .job_id = "x"})); },
              testing::ThrowsMessage<UnavailableError>(HasSubstr("smoke")));
}

TEST(Connect, refuses_ranks_of_other_nodes) {
  Environment several;
  several.rank = 1;
  several.world_size = 4;
  several.local_world_size = 2;
  several.job_id = "x";
  auto const job = describe_job({}, several);
  EXPECT_THAT([&] { static_cast<void>(open_transport({}, job, {})); },
              testing::ThrowsMessage<UnavailableError>(HasSubstr("2 of 4")));
}

TEST(Connect, refuses_invalid_ranks_and_sizes) {
  EXPECT_THAT([] { static_cast<void>(connect({.rank = 2, .world_size = 2, .job_id = "x"})); },
              testing::ThrowsMessage<UsageError>(HasSubstr("0 to 1")));
  EXPECT_THAT([] { static_cast<void>(connect({.rank = 0, .world_size = 0})); },
              testing::ThrowsMessage<UsageError>(HasSubstr("expected a `world_size` of at least 1, got 0")));
  EXPECT_THAT([] { static_cast<void>(connect({.timeout = std::chrono::milliseconds(0)})); },
              testing::ThrowsMessage<UsageError>(HasSubstr("timeout")));
  EXPECT_THAT([] { static_cast<void>(describe_job({.rank = 0, .world_size = 2}, Environment{})); },
              testing::ThrowsMessage<UsageError>(HasSubstr("CROSSRANK_JOB_ID")));
}

/// No memory is reserved for ranks before their number is known to be possible.
TEST(Connect, refuses_more_ranks_than_a_node_has) {
  EXPECT_THAT([] { static_cast<void>(connect({.rank = 0, .world_size = 2'147'483'647, .job_id = "x"})); },
              testing::ThrowsMessage<UnavailableError>(HasSubstr("4096")));
}

TEST(Connect, accepts_the_longest_possible_timeout) {
  auto const forever = std::chrono::milliseconds::max();
  auto const options =
      spi::resolve_options({.timeout = forever, .connect_timeout = forever, .user_limit = forever}, "connect");
  for (auto const time : {options.timeout, options.connect_timeout.value(), options.user_limit}) {
    EXPECT_GE(time, std::chrono::hours(24 * 365));
    EXPECT_GT(std::chrono::steady_clock::now() + std::chrono::nanoseconds(time), std::chrono::steady_clock::now());
  }
}

TEST(Connect, refuses_limits_that_are_not_positive) {
  using std::chrono::milliseconds;
  std::map<std::string, ConnectOptions> const cases{{"timeout", {.timeout = milliseconds(0)}},
                                                    {"connect_timeout", {.connect_timeout = milliseconds(0)}},
                                                    {"user_limit", {.user_limit = milliseconds(0)}}};
  for (auto const& [name, options] : cases) {
    auto const info =
        error_of<UsageError>([&options = options] { static_cast<void>(spi::resolve_options(options, "connect")); });
    EXPECT_EQ(info.resource, name);
    EXPECT_EQ(info.got, "0 ms");
  }
  EXPECT_THAT([] { static_cast<void>(connect({.backend = "fake", .user_limit = milliseconds(-5)})); },
              testing::ThrowsMessage<UsageError>(HasSubstr("-5 ms")));
}

TEST(Connect, takes_its_limit_from_variable_then_program_then_timeout) {
  using std::chrono::seconds;
  Environment nothing;
  Environment timeout;
  timeout.timeout = seconds(3);
  Environment long_timeout;
  long_timeout.timeout = seconds(3000);
  Environment both = timeout;
  both.connect_timeout = seconds(7);
  ConnectOptions const asked{.connect_timeout = seconds(50)};
  EXPECT_EQ(connect_timeout_of({}, nothing), seconds(120));
  EXPECT_EQ(connect_timeout_of({}, timeout), seconds(3));
  EXPECT_EQ(connect_timeout_of({}, long_timeout), seconds(120));
  EXPECT_EQ(connect_timeout_of(asked, nothing), seconds(50));
  EXPECT_EQ(connect_timeout_of(asked, timeout), seconds(50));
  EXPECT_EQ(connect_timeout_of(asked, both), seconds(7));
}

CROSSRANK_RANK_SCENARIO(wait_for_missing_ranks) {
  auto const started = std::chrono::steady_clock::now();
  try {
    static_cast<void>(connect());
    self.say("connected");
  } catch (TimeoutError const& e) {
    EXPECT_FALSE(e.group_usable());
    EXPECT_THAT(std::vector<int>(e.failed_ranks().begin(), e.failed_ranks().end()), testing::ElementsAre(1));
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(100));
    self.say("timeout");
  }
  return 0;
}

TEST(Connect, is_limited_by_either_variable) {
  for (auto const* const variable : {"CROSSRANK_TIMEOUT", "CROSSRANK_CONNECT_TIMEOUT"}) {
    auto const job = run_ranks(1, "wait_for_missing_ranks",
                               {.environment = {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {variable, "300ms"}}});
    EXPECT_EQ(job.ranks.at(0).out, "timeout\n") << variable << job.text();
  }
}

/// The threads find each other in their process, so nothing has to tell their job from others on the host.
TEST(Connect, needs_no_job_id_for_ranks_that_are_threads) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::function<void()>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([rank] {
        auto world = connect(
            {.rank = rank, .world_size = 3, .rank_kind = RankKind::thread, .arena_cap = std::uint64_t{64} << 20});
        world.barrier();
        world.close();
      });
    }
    for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
  }
}

/// These errors leave no usable group.
TEST(Connect, reports_no_usable_group_when_it_fails) {
  auto const failures = std::vector<ConnectOptions>{{.rank = 2, .world_size = 2, .job_id = "x"},
                                                    {.timeout = std::chrono::milliseconds(0)},
                                                    {.rank = 0, .world_size = 2},
                                                    {.backend = "smoke", .rank = 0, .world_size = 2, .job_id = "x"}};
  for (auto const& options : failures) {
    try {
      static_cast<void>(connect(options));
      ADD_FAILURE() << "connected";
    } catch (Error const& e) {
      EXPECT_FALSE(e.group_usable()) << e.what();
      EXPECT_THAT(e.report(), testing::Not(HasSubstr("used again")));
    }
  }
}

TEST(Connect, uses_mpi_when_ranks_under_mpirun_declare_hosts) {
  Environment environment;
  environment.launcher = Launcher::open_mpi;
  environment.rank = 1;
  environment.world_size = 4;
  environment.local_world_size = 4;
  environment.job_id = "x";
  EXPECT_FALSE(describe_job({}, environment).declares_hosts);
  environment.host_id = "a";
  EXPECT_TRUE(describe_job({}, environment).declares_hosts);
  environment.launcher = Launcher::crossrank;
  EXPECT_FALSE(describe_job({}, environment).declares_hosts);
  EXPECT_EQ(describe_job({}, environment).host_id, "a");
}

TEST(Connect, keeps_two_jobs_of_one_rank_separate) {
  for (auto const& error :
       run_threads({[] { connect({.backend = "shm", .rank = 0, .world_size = 1, .job_id = "a"}).barrier(); },
                    [] { connect({.backend = "shm", .rank = 0, .world_size = 1, .job_id = "b"}).barrier(); }})) {
    EXPECT_EQ(text_of(error), "");
  }
}

}  // namespace
}  // namespace crossrank::test
