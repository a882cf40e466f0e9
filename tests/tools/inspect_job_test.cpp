// Tests `crossrank inspect` on jobs that hang, have failed, or are dead.
#include "tools/inspect/inspect_job.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>
#include <crossrank/message_queue.hpp>

#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"

namespace crossrank {
namespace {

using test::ProcessRanks;
using testing::HasSubstr;

[[noreturn]] void stay() {
  for (;;) ::pause();
}

void hang_in_messages(test::RankSelf const& self, Collective const& world) {
  auto tensor = Tensor::zeros({1000}, Dtype::u8);
  if (self.rank == 2) stay();
  if (self.rank == 1) world.send(tensor, 0);
  if (self.rank == 0) world.recv(tensor, 1);
  if (self.rank == 0) world.recv(tensor, 2);
  stay();
}

void hang_in_queue(test::RankSelf const& self, Collective const& world) {
  auto const queue = MessageQueue::create(world, {.writer_rank = 0, .chunk_bytes = 64, .chunks = 2});
  auto const message = Tensor::zeros({8}, Dtype::u8);
  for (int i = 0; self.rank == 0; ++i) queue.enqueue_tensor(message);
  while (self.rank == 1) (void)queue.dequeue_tensor();
  stay();
}

/// Calls two barriers, then does what its argument says, and stays.
CROSSRANK_RANK_SCENARIO(get_stuck) {
  auto const& how = self.arguments.at(0);
  static std::optional<Collective> kept;  // destroyed after the library's exit hook
  auto world = connect({.timeout = std::chrono::minutes(5), .arena_cap = std::uint64_t{64} << 20});
  world.barrier();
  world.barrier();
  self.say("met");
  if (how == "keep") kept = world;
  if (how == "close" || how == "keep") {
    world.close();
    return 0;
  }
  if (how == "messages") hang_in_messages(self, world);
  if (how == "queue") hang_in_queue(self, world);
  if (self.rank == 1 && how == "death") ::kill(::getpid(), SIGKILL);
  if (self.rank == 1) stay();
  try {
    world.barrier();
  } catch (Error const& e) {
    self.say("failed");
  }
  stay();
}

/// Returns the JSON output of `crossrank inspect` for a job; null when there is no such job.
Json inspect(std::string const& job, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"inspect", "--json", "--job", job};
  arguments.insert(arguments.end(), more.begin(), more.end());
  auto const end = test::run_command(arguments);
  auto const report = Json::parse(end.out);
  EXPECT_EQ(report.at("command"), "inspect");
  EXPECT_EQ(report.at("exit_code"), end.exit_code);
  EXPECT_EQ(report.at("ok"), end.exit_code == 0);
  auto const& jobs = report.at("jobs");
  EXPECT_EQ(end.exit_code, jobs.empty() ? 1 : 0) << end.err;
  EXPECT_LE(jobs.size(), 1U);
  return jobs.empty() ? Json() : jobs.at(0);
}

/// Inspects the job until it reaches the wanted state, because nothing reports that a rank sleeps.
Json inspect_until(std::string const& job, std::function<bool(Json const&)> const& wanted) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    auto seen = inspect(job);
    if (!seen.is_null() && wanted(seen)) return seen;
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the job did not reach the wanted state:\n" << seen.dump(2);
      return seen;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Json waits_for(Json const& job, std::size_t rank) { return job.at("ranks").at(rank).at("waits_for"); }

void await_all(ProcessRanks& job, int ranks, char const* marker) {
  for (int rank = 0; rank < ranks; ++rank) ASSERT_TRUE(job.wait_for_line(rank, marker)) << "rank " << rank;
}

TEST(InspectJob, names_the_rank_that_a_hung_job_waits_for) {
  ProcessRanks job(3, "get_stuck", {.arguments = {"barrier"}});
  await_all(job, 3, "met");
  auto const seen = inspect_until(
      job.job_id(), [](Json const& now) { return waits_for(now, 0) == Json{1} && waits_for(now, 2) == Json{1}; });

  EXPECT_EQ(seen.at("running"), true);
  EXPECT_EQ(seen.at("look_first_at"), Json{1});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto const& view = seen.at("ranks").at(rank);
    EXPECT_EQ(view.at("rank"), rank);
    EXPECT_EQ(view.at("pid"), job.pid(static_cast<int>(rank)));
    EXPECT_EQ(view.at("status"), "alive");
    auto const& last = view.at("operations").back();
    EXPECT_EQ(last.at("name"), "barrier");
    EXPECT_EQ(last.at("state"), rank == 1 ? "done" : "waiting");
    EXPECT_GE(last.at("age_s").get<double>(), 0.0);
    EXPECT_LT(last.at("age_s").get<double>(), 60.0);
  }
  auto const& group = seen.at("groups").at(0);
  EXPECT_EQ(group.at("name"), "world");
  EXPECT_EQ(group.at("op_kind"), "barrier");
  EXPECT_EQ(group.at("arrived"), Json({0, 2}));
  EXPECT_EQ(group.at("missing"), Json{1});
  EXPECT_EQ(group.at("round"), seen.at("ranks").at(0).at("operations").back().at("round"));
}

TEST(InspectJob, distinguishes_a_stopped_rank_from_a_slow_one) {
  ProcessRanks job(3, "get_stuck", {.arguments = {"barrier"}});
  await_all(job, 3, "met");
  job.signal(1, SIGSTOP);
  auto const seen = inspect_until(job.job_id(), [](Json const& now) {
    return now.at("ranks").at(1).at("status") == "stopped" && waits_for(now, 0) == Json{1};
  });
  EXPECT_EQ(seen.at("ranks").at(0).at("status"), "alive");
  EXPECT_EQ(seen.at("ranks").at(2).at("status"), "alive");

  auto const by_pid = test::run_command({"inspect", "--pid", std::to_string(job.pid(2))});
  EXPECT_EQ(by_pid.exit_code, 0) << by_pid.err;
  EXPECT_THAT(by_pid.out, HasSubstr("job " + job.job_id()));
  EXPECT_THAT(by_pid.out, HasSubstr("look first at rank 1"));
  EXPECT_THAT(by_pid.out, HasSubstr("stopped rank 1   pid " + std::to_string(job.pid(1))));
  EXPECT_THAT(by_pid.out, HasSubstr("ranks 0, 2 arrived, waited for: rank 1"));
}

TEST(InspectJob, shows_a_dead_rank_and_why_the_group_failed) {
  ProcessRanks job(3, "get_stuck", {.arguments = {"death"}});
  ASSERT_TRUE(job.wait_for_line(0, "failed"));
  ASSERT_TRUE(job.wait_for_line(2, "failed"));
  auto const seen = inspect(job.job_id());
  ASSERT_FALSE(seen.is_null());
  auto const& dead = seen.at("ranks").at(1);
  EXPECT_EQ(dead.at("status"), "dead");
  EXPECT_EQ(dead.at("operations").back().at("name"), "barrier");
  EXPECT_EQ(seen.at("ranks").at(0).at("status"), "alive");
  auto const& failure = seen.at("groups").at(0).at("failure");
  // The other rank may have arrived after the verdict without starting an operation.
  auto const decider = failure.at("decided_by").get<std::size_t>();
  EXPECT_EQ(seen.at("ranks").at(decider).at("operations").back().at("state"), "failed");
  EXPECT_EQ(failure.at("blamed"), Json{1});
  EXPECT_THAT(failure.at("text").get<std::string>(), HasSubstr("pid " + std::to_string(job.pid(1))));
}

TEST(InspectJob, shows_pending_receives) {
  ProcessRanks job(3, "get_stuck", {.arguments = {"messages"}});
  await_all(job, 3, "met");
  auto const seen = inspect_until(job.job_id(), [](Json const& now) { return waits_for(now, 0) == Json{2}; });
  auto const& operations = seen.at("ranks").at(0).at("operations");
  auto const& last = operations.back();
  EXPECT_EQ(last.at("name"), "recv");
  EXPECT_EQ(last.at("peer"), 2);
  EXPECT_EQ(last.at("bytes"), 1000);
  EXPECT_EQ(last.at("state"), "waiting");
  auto const& before = operations.at(operations.size() - 2);
  EXPECT_EQ(before.at("peer"), 1);
  EXPECT_EQ(before.at("state"), "done");
  EXPECT_EQ(seen.at("ranks").at(1).at("operations").back().at("name"), "send");
  EXPECT_EQ(seen.at("look_first_at"), Json{2});
}

TEST(InspectJob, shows_the_reader_that_a_full_queue_waits_for) {
  ProcessRanks job(3, "get_stuck", {.arguments = {"queue"}});
  await_all(job, 3, "met");
  auto const seen = inspect_until(
      job.job_id(), [](Json const& now) { return waits_for(now, 0) == Json{2} && waits_for(now, 1) == Json{0}; });
  auto const& queue = seen.at("queues").at(0);
  EXPECT_EQ(queue.at("writer").at("rank"), 0);
  EXPECT_EQ(queue.at("writer").at("messages"), 2);
  EXPECT_EQ(seen.at("look_first_at"), Json{2});
}

/// Returns the options of a job that keeps flight records.
test::RankOptions recorded(test::TemporaryDirectory const& directory, std::string how) {
  return {.arguments = {std::move(how)}, .environment = {{"CROSSRANK_FLIGHT_DIR", directory.path().string()}}};
}

TEST(InspectJob, reads_the_records_of_a_dead_job) {
  test::TemporaryDirectory const directory;
  ProcessRanks job(3, "get_stuck", recorded(directory, "barrier"));
  await_all(job, 3, "met");
  (void)inspect_until(job.job_id(), [](Json const& now) { return waits_for(now, 0) == Json{1}; });
  // Stop all ranks first, so that the last one does not notice the death of the others.
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
  (void)inspect_until(job.job_id(), [](Json const& now) {
    auto const& all = now.at("ranks");
    return std::all_of(all.begin(), all.end(), [](Json const& rank) { return rank.at("status") == "stopped"; });
  });
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_exit(rank));

  EXPECT_TRUE(inspect(job.job_id()).is_null());
  auto const seen = inspect(job.job_id(), {"--flight", directory.path().string()});
  ASSERT_FALSE(seen.is_null());
  EXPECT_EQ(seen.at("running"), false);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(seen.at("ranks").at(rank).at("status"), "dead");
    EXPECT_EQ(seen.at("ranks").at(rank).at("operations").back().at("name"), "barrier");
  }
  EXPECT_EQ(seen.at("ranks").at(0).at("operations").back().at("state"), "waiting");
  EXPECT_EQ(seen.at("groups").at(0).at("missing"), Json{1});
  EXPECT_TRUE(job.wait().leaks.empty());

  auto const cleaned = test::run_command({"clean", directory.path().string()});
  EXPECT_THAT(cleaned.out, HasSubstr("a flight record"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  auto const inspected = test::run_command({"inspect", "--flight", directory.path().string()});
  EXPECT_THAT(inspected.err, HasSubstr("there are no flight records in " + directory.path().string()));
}

TEST(InspectJob, names_short_bounds_of_its_numbers) {
  auto const process = test::run_command({"inspect", "--pid", "0"});
  auto const last = test::run_command({"inspect", "--last", "-1"});
  EXPECT_EQ(process.exit_code, 2);
  EXPECT_THAT(process.err, HasSubstr("2147483647\n"));
  EXPECT_EQ(last.exit_code, 2);
  EXPECT_THAT(last.err, HasSubstr("2147483647\n"));
}

TEST(InspectJob, keeps_the_record_of_a_running_job) {
  test::TemporaryDirectory const directory;
  ProcessRanks job(3, "get_stuck", recorded(directory, "barrier"));
  await_all(job, 3, "met");
  for (int rank = 0; rank < 2; ++rank) job.signal(rank, SIGKILL);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(job.wait_for_exit(rank));
  auto const cleaned = test::run_command({"clean", directory.path().string()});
  EXPECT_THAT(cleaned.out, HasSubstr("its job is still running"));
  EXPECT_FALSE(std::filesystem::is_empty(directory.path()));
}

TEST(InspectJob, keeps_no_record_of_a_job_that_ended_cleanly) {
  test::TemporaryDirectory const directory;
  for (auto const* how : {"close", "keep"}) {
    auto const job = test::run_ranks(3, "get_stuck", recorded(directory, how));
    EXPECT_TRUE(job.ok()) << job.text();
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << how;
  }
  auto const inspected = test::run_command({"inspect", "--flight", directory.path().string()});
  EXPECT_THAT(inspected.err, HasSubstr("there are no flight records in " + directory.path().string()));
}

TEST(InspectJob, refuses_a_missing_directory_for_records) {
  test::RankOptions options{.arguments = {"close"}, .environment = {{"CROSSRANK_FLIGHT_DIR", "/proc/nowhere"}}};
  auto const job = test::run_ranks(2, "get_stuck", std::move(options));
  for (auto const& rank : job.ranks) EXPECT_THAT(rank.err, HasSubstr("/proc/nowhere")) << job.text();
}

/// Arguments: the ranks that do not connect.
CROSSRANK_RANK_SCENARIO(come_or_not) {
  bool const stays_away = self.arguments.at(0).find(std::to_string(self.rank)) != std::string::npos;
  self.say("starts");
  if (stays_away) stay();
  [[maybe_unused]] auto const world = connect({.connect_timeout = std::chrono::minutes(5)});
  stay();
}

TEST(InspectJob, shows_which_ranks_have_arrived_in_connect_and_which_are_missing) {
  ProcessRanks job(4, "come_or_not", {.arguments = {"13"}});
  await_all(job, 4, "starts");
  auto const seen = inspect_until(job.job_id(), [](Json const& now) {
    return now.contains("connecting") && now.at("missing") == Json{1, 3};
  });
  auto const& ranks = seen.at("ranks");
  ASSERT_EQ(ranks.size(), 4U);
  for (std::size_t i : {0U, 1U}) {
    auto const rank = ranks[i].at("rank").get<int>();
    EXPECT_EQ(rank, i == 0 ? 0 : 2);
    EXPECT_EQ(ranks[i].at("pid"), job.pid(rank));
    EXPECT_EQ(ranks[i].at("status"), "connecting");
    EXPECT_EQ(ranks[i + 2].at("status"), "absent");
  }
  EXPECT_EQ(seen.at("look_first_at"), (Json{1, 3}));
  EXPECT_DOUBLE_EQ(seen.at("timeout_s").get<double>(), 300);

  job.signal(2, SIGSTOP);
  inspect_until(job.job_id(),
                [](Json const& now) { return now.contains("ranks") && now.at("ranks")[1].at("status") == "stopped"; });
  auto const text = test::run_command({"inspect", "--pid", std::to_string(job.pid(2))});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("missing: 1, 3"));
  EXPECT_THAT(text.out, HasSubstr("stopped    rank 2"));
  EXPECT_EQ(test::run_command({"inspect", "--pid", std::to_string(job.pid(1))}).exit_code, 1)
      << "rank 1 has not connected";
}

TEST(InspectJob, reports_an_unreadable_record_and_continues) {
  test::TemporaryDirectory const directory;
  auto const truncated = directory.path() / "crossrank.cut.0.flight";
  std::uint64_t const magic = 0x314b4e5253535243;
  std::ofstream(truncated, std::ios::binary).write(reinterpret_cast<char const*>(&magic), sizeof magic)
      << std::string(64, 'x');
  std::ofstream(directory.path() / "crossrank.other.0.flight") << "something else entirely, long enough to be examined";
  auto const end = test::run_command({"inspect", "--job", "none", "--flight", directory.path().string()});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr(truncated.string()));
  EXPECT_THAT(end.err, HasSubstr("no such job"));
}

TEST(InspectJob, reports_a_process_that_it_may_not_inspect) {
  auto const end = test::run_command({"inspect", "--pid", "2147483000"});
  EXPECT_EQ(end.exit_code, 3) << "error of the system";
  EXPECT_THAT(end.err, HasSubstr("2147483000"));
}

}  // namespace
}  // namespace crossrank
