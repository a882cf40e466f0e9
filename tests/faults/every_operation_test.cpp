// Runs every operation with a rank that is killed, killed half way, stopped, or that throws. Each other rank gets the
// same error within its deadline and a second. The error names the rank, its host, the operation and the round.
#include <array>
#include <chrono>
#include <csignal>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/faults/fault_report.hpp"

namespace crossrank::every_operation_test {
namespace {

using test::JobOutcome;
using test::ProcessRanks;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int ranks = 3;
constexpr int victim = 1;
constexpr auto stop_timeout = test::short_timeout;
constexpr std::int64_t few = 10 * ranks;
constexpr std::int64_t many = std::int64_t{3 * ranks} << 18;  // goes through the arenas in several steps

enum class Steps { one, several };

struct OperationCase {
  char const* name;
  char const* operation;                               ///< its name in the error of rank 0
  void (*call)(Collective& world, std::int64_t rows);  ///< `rows` is a multiple of the number of ranks
  Steps steps = Steps::one;                            ///< barrier rounds of the call when there are many rows
};

void PrintTo(OperationCase const& operation, std::ostream* out) { *out << operation.name; }

Tensor rows_of(std::int64_t rows) { return Tensor::zeros({rows}, Dtype::i32); }
Tensor at_root(Collective const& world, std::int64_t rows) { return world.rank() == 0 ? rows_of(rows) : Tensor(); }
std::vector<std::int64_t> equal(std::int64_t rows) { return {rows / ranks, rows / ranks, rows / ranks}; }

constexpr std::array operation_cases{
    OperationCase{"barrier", "barrier", [](Collective& w, std::int64_t) { w.barrier(); }},
    OperationCase{"ibarrier", "barrier", [](Collective& w, std::int64_t) { w.ibarrier().wait(); }},
    OperationCase{"broadcast", "broadcast",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    w.broadcast(tensor);
                  },
                  Steps::several},
    OperationCase{"broadcast_of_the_victim", "broadcast",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    w.broadcast(tensor, {victim});
                  },
                  Steps::several},
    OperationCase{"all_reduce", "all_reduce",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    w.all_reduce(tensor);
                  },
                  Steps::several},
    OperationCase{"iall_reduce", "all_reduce",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    w.iall_reduce(tensor).wait();
                  },
                  Steps::several},
    OperationCase{"reduce", "reduce",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    w.reduce(tensor);
                  },
                  Steps::several},
    OperationCase{"reduce_scatter", "reduce_scatter",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n / ranks);
                    w.reduce_scatter(out, rows_of(n));
                  },
                  Steps::several},
    OperationCase{"reduce_scatterv", "reduce_scatterv",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n / ranks);
                    w.reduce_scatterv(out, rows_of(n), {.rows = equal(n)});
                  },
                  Steps::several},
    OperationCase{"all_gather", "all_gather",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n);
                    w.all_gather(out, rows_of(n / ranks));
                  },
                  Steps::several},
    OperationCase{"all_gatherv", "all_gatherv",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n);
                    w.all_gatherv(out, rows_of(n / ranks), {.rows = equal(n)});
                  },
                  Steps::several},
    OperationCase{"all_gatherv_of_bytes", "all_gatherv",
                  [](Collective& w, std::int64_t n) { static_cast<void>(w.all_gatherv(rows_of(n / ranks).bytes())); }},
    OperationCase{"gather", "gather",
                  [](Collective& w, std::int64_t n) {
                    auto out = at_root(w, n);
                    w.gather(out, rows_of(n / ranks));
                  },
                  Steps::several},
    OperationCase{"gatherv", "gatherv",
                  [](Collective& w, std::int64_t n) {
                    auto out = at_root(w, n);
                    w.gatherv(out, rows_of(n / ranks), {.rows = equal(n)});
                  },
                  Steps::several},
    OperationCase{"scatter", "scatter",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n / ranks);
                    w.scatter(out, at_root(w, n));
                  },
                  Steps::several},
    OperationCase{"scatterv", "scatterv",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n / ranks);
                    w.scatterv(out, at_root(w, n), {.rows = equal(n)});
                  },
                  Steps::several},
    OperationCase{"all_to_all", "all_to_all",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n);
                    w.all_to_all(out, rows_of(n));
                  },
                  Steps::several},
    OperationCase{"all_to_allv", "all_to_allv",
                  [](Collective& w, std::int64_t n) {
                    auto out = rows_of(n);
                    w.all_to_allv(out, rows_of(n), {.send = equal(n), .receive = equal(n)});
                  },
                  Steps::several},
    OperationCase{"send", "send",
                  [](Collective& w, std::int64_t n) {
                    // Some messages are sent before the sender has to wait for the receiver.
                    for (int i = 0; w.rank() == 0 && i < 100; ++i) w.send(rows_of(n), victim);
                    w.barrier();
                  }},
    OperationCase{"recv", "recv",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    if (w.rank() == 0) w.recv(tensor, victim);
                    w.barrier();
                  }},
    OperationCase{"irecv", "recv",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    if (w.rank() == 0) w.irecv(tensor, victim).wait();
                    w.barrier();
                  }},
    OperationCase{"recv_any", "recv_any",
                  [](Collective& w, std::int64_t n) {
                    auto tensor = rows_of(n);
                    if (w.rank() == 0) w.recv_any(tensor);
                    w.barrier();
                  }},
    OperationCase{"sendrecv", "sendrecv",
                  [](Collective& w, std::int64_t n) {
                    auto in = rows_of(n);
                    if (w.rank() == 0) w.sendrecv(in, rows_of(n), {.dst = victim, .src = victim});
                    w.barrier();
                  }},
    OperationCase{"broadcast_object", "broadcast_object",
                  [](Collective& w, std::int64_t) { static_cast<void>(w.broadcast_object(std::string(200, 'x'))); }},
    OperationCase{"all_gather_objects", "all_gather_objects",
                  [](Collective& w, std::int64_t) { static_cast<void>(w.all_gather_objects(w.rank())); }},
    OperationCase{"gather_objects", "gather_objects",
                  [](Collective& w, std::int64_t) { static_cast<void>(w.gather_objects(w.rank())); }},
    OperationCase{"scatter_objects", "scatter_objects",
                  [](Collective& w, std::int64_t) {
                    static_cast<void>(w.scatter_objects(std::vector<int>(w.rank() == 0 ? ranks : 0)));
                  }},
    OperationCase{"recv_object", "recv_object",
                  [](Collective& w, std::int64_t) {
                    if (w.rank() == 0) static_cast<void>(w.recv_object<int>(victim));
                    w.barrier();
                  }},
    OperationCase{"split", "split",
                  [](Collective& w, std::int64_t) {
                    static_cast<void>(w.split({{0, 1, 2}}));
                  }},
    OperationCase{"split_by", "split_by", [](Collective& w, std::int64_t) { static_cast<void>(w.split_by(0)); }},
    OperationCase{"close", "close", [](Collective& w, std::int64_t) { w.close(); }},
};

OperationCase const& operation_called(std::string_view name) {
  for (auto const& operation : operation_cases) {
    if (operation.name == name) return operation;
  }
  throw std::runtime_error("unknown operation");
}

void suffer(std::string const& fault) {
  if (fault == "killed") ::kill(::getpid(), SIGKILL);
  if (fault == "stopped") ::raise(SIGSTOP);
  if (fault == "throws") throw std::runtime_error("the tokenizer is missing");
  if (fault == "killed_half_way") platform::arm_crash_point("node.group.arriving", 3);
}

/// Arguments: operation, fault of the victim, timeout in milliseconds.
CROSSRANK_RANK_SCENARIO(lose_a_rank_in_an_operation) {
  auto const& operation = operation_called(self.arguments.at(0));
  auto const& fault = self.arguments.at(1);
  auto world = connect(test::fault_options(std::chrono::milliseconds(std::stol(self.arguments.at(2)))));
  world.barrier();
  if (self.rank == victim) suffer(fault);
  return test::end_with_verdict(self, [&] { operation.call(world, fault == "killed_half_way" ? many : few); });
}

/// Returns the part of the error that is the same on all ranks, from the round to the process.
std::string cause_in(std::string const& text) {
  auto const from = text.find("round ");
  auto const pid = text.find(", pid ", from);
  auto const to = text.find(')', pid);
  if (from == std::string::npos || pid == std::string::npos || to == std::string::npos) return "no cause in: " + text;
  return text.substr(from, to + 1 - from);
}

/// Expects the same verdict on the survivors, and on the victim if it lives. It names the victim; on rank 0 it also
/// names the operation.
void expect_told(OperationCase const& operation, JobOutcome const& job, std::vector<int> const& lost, char const* code,
                 std::chrono::milliseconds timeout) {
  auto const verdict = test::expect_one_verdict(job, lost, "end", timeout);
  EXPECT_EQ(verdict.code, code) << job.text();
  EXPECT_TRUE(verdict.blames_only(victim)) << job.text();
  std::array<char, 256> host{};
  ::gethostname(host.data(), 63);  // the length that an error quotes
  auto const first = test::verdict_of(job.ranks.at(0)).text;
  EXPECT_TRUE(first.starts_with(std::string(operation.operation) + ":")) << job.text();
  EXPECT_THAT(cause_in(first), HasSubstr(std::string("(host ") + host.data())) << job.text();
  for (int rank = 1; rank < ranks; ++rank) {
    if (rank == victim && !lost.empty()) continue;
    EXPECT_EQ(cause_in(test::verdict_of(job.ranks.at(as_size(rank))).text), cause_in(first)) << job.text();
  }
}

JobOutcome run(OperationCase const& operation, char const* fault) {
  return test::run_ranks(ranks, "lose_a_rank_in_an_operation",
                         {.arguments = {operation.name, fault, std::to_string(test::long_timeout.count())}});
}

/// Rank 0 prints the long report of the error that it gets.
CROSSRANK_RANK_SCENARIO(report_a_death) {
  auto const world = connect(test::fault_options());
  world.barrier();
  if (self.rank == victim) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // so that the others are in the barrier
    ::kill(::getpid(), SIGKILL);
  }
  try {
    world.barrier();
  } catch (PeerLostError const& e) {
    if (self.rank == 0) self.say(e.report());
  }
  return 0;
}

TEST(FaultsReport, names_the_lost_rank_its_place_and_the_arrived_ranks) {
  auto const job = test::run_ranks(ranks, "report_a_death");
  auto const& report = job.ranks.at(0).out;
  std::array<char, 256> host{};
  ::gethostname(host.data(), 63);
  EXPECT_THAT(report, HasSubstr("rank 1: died"));
  EXPECT_THAT(report, HasSubstr(std::string("host ") + host.data()));
  EXPECT_THAT(report, HasSubstr("last in barrier round 1"));
  // A rank that enters the barrier after the verdict of the other has not arrived.
  EXPECT_THAT(report, ContainsRegex("arrived at round 2: [02]"));
  EXPECT_THAT(report, HasSubstr("decided by rank "));
  EXPECT_THAT(report, HasSubstr("all ranks of the group got this verdict"));
}

class EveryOperation : public testing::TestWithParam<OperationCase> {};

TEST_P(EveryOperation, reports_a_killed_rank_to_all) {
  auto const job = run(GetParam(), "killed");
  test::expect_death_is_told(job, victim);
  expect_told(GetParam(), job, {victim}, "peer_lost", test::long_timeout);
  EXPECT_THAT(test::verdict_of(job.ranks.at(0)).text, HasSubstr("died"));
}

TEST_P(EveryOperation, reports_a_rank_killed_half_way_to_all) {
  if (GetParam().steps == Steps::one) GTEST_SKIP() << "the operation is one barrier round or one message";
  auto const job = run(GetParam(), "killed_half_way");
  expect_told(GetParam(), job, {victim}, "peer_lost", test::long_timeout);
}

TEST_P(EveryOperation, reports_a_rank_that_throws_to_all) {
  auto const job = run(GetParam(), "throws");
  expect_told(GetParam(), job, {victim}, "peer_lost", test::long_timeout);
  for (std::size_t const rank : {0U, 2U})
    EXPECT_THAT(test::verdict_of(job.ranks.at(rank)).text, HasSubstr("the tokenizer is missing")) << job.text();
}

TEST_P(EveryOperation, reports_a_stopped_rank_to_all_and_to_itself_when_it_continues) {
  ProcessRanks job(ranks, "lose_a_rank_in_an_operation",
                   {.arguments = {GetParam().name, "stopped", std::to_string(stop_timeout.count())}});
  for (int const rank : {0, 2}) ASSERT_TRUE(job.wait_for_exit(rank, test::step_timeout));
  job.signal(victim, SIGCONT);
  auto const outcome = job.wait();
  expect_told(GetParam(), outcome, {}, "timeout", stop_timeout);
  EXPECT_THAT(test::verdict_of(outcome.ranks.at(0)).text, HasSubstr("made no progress for"));
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryOperation, testing::ValuesIn(operation_cases),
                         [](auto const& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace crossrank::every_operation_test
