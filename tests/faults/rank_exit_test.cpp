// A rank ends in another way than by a kill. The other ranks get an error at once, with the reason.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

using test::run_ranks;
using test::Verdict;
using testing::HasSubstr;

constexpr int leaver = 1;
/// Half of the timeout. A death is noticed long before; the rest is for a machine under load.
constexpr long at_once = test::long_timeout.count() / 2;

/// Three ranks pass a barrier. One of them then calls `leave` while the others wait for it.
int leave_while_others_wait(test::RankSelf const& self, void (*leave)(Collective const&)) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    test::gather_everything(world, 0, 1);
    if (self.rank == leaver) leave(world);
    world.barrier();
  });
}

Verdict expect_lost(test::JobOutcome const& job, std::string const& words) {
  auto verdict = test::expect_one_verdict(job, {leaver});
  EXPECT_EQ(verdict.code, "peer_lost") << job.text();
  EXPECT_TRUE(verdict.blames_only(leaver)) << job.text();
  EXPECT_LT(verdict.milliseconds, at_once) << job.text();
  EXPECT_THAT(verdict.text, HasSubstr(words));
  return verdict;
}

CROSSRANK_RANK_SCENARIO(exit_without_close) {
  return leave_while_others_wait(self, [](Collective const&) { std::exit(7); });
}
TEST(FaultsRankExit, exit_without_close_is_reported_as_left) {
  auto const job = run_ranks(3, "exit_without_close");
  expect_lost(job, "left");
  EXPECT_EQ(job.ranks.at(leaver).exit_code, 7) << job.text();
}

CROSSRANK_RANK_SCENARIO(quick_exit_without_close) {
  return leave_while_others_wait(self, [](Collective const&) { std::_Exit(7); });
}
TEST(FaultsRankExit, quick_exit_is_reported_as_death) { expect_lost(run_ranks(3, "quick_exit_without_close"), "died"); }

/// The sends fit into the ring of messages.
CROSSRANK_RANK_SCENARIO(send_to_a_dead_rank) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    world.barrier();
    if (self.rank == leaver) std::_Exit(7);
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    auto const is_known = [&] { return std::ranges::count(world.failed_ranks(), leaver) == 1; };
    while (!is_known() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    if (!is_known()) throw std::runtime_error("the death is not known");
    world.send(Tensor::scalar(1), leaver);
  });
}
TEST(FaultsRankExit, send_to_a_dead_rank_is_refused) { expect_lost(run_ranks(3, "send_to_a_dead_rank"), "died"); }

CROSSRANK_RANK_SCENARIO(uncaught_exception) {
  return leave_while_others_wait(self, [](Collective const&) {
    std::thread([] { throw std::runtime_error("the tokenizer is missing"); }).join();
  });
}
TEST(FaultsRankExit, uncaught_exception_reaches_the_others_with_its_text) {
  auto const job = run_ranks(3, "uncaught_exception");
  expect_lost(job, "the tokenizer is missing");
  EXPECT_EQ(job.ranks.at(leaver).signal, SIGABRT) << job.text();
}

/// The process continues without its handle of the group. The error of the others says so.
CROSSRANK_RANK_SCENARIO(caught_exception) {
  return leave_while_others_wait(self, [](Collective const&) { throw std::runtime_error("the tokenizer is missing"); });
}
TEST(FaultsRankExit, exception_that_drops_the_handle_is_reported) {
  expect_lost(run_ranks(3, "caught_exception"), "an exception took its handle");
}

CROSSRANK_RANK_SCENARIO(exec_of_another_program) {
  return leave_while_others_wait(self, [](Collective const&) { ::execl("/bin/sh", "sh", "-c", "exit 9", nullptr); });
}
TEST(FaultsRankExit, exec_is_reported_as_death) {
  auto const job = run_ranks(3, "exec_of_another_program");
  expect_lost(job, "died");
  EXPECT_EQ(job.ranks.at(leaver).exit_code, 9) << job.text();
}

/// Argument: directory for the core file.
CROSSRANK_RANK_SCENARIO(abort_with_core) {
  if (self.rank == leaver) {
    if (::chdir(self.arguments.at(0).c_str()) != 0) return 3;
    rlimit limit{};
    ::getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_CORE, &limit);
  }
  return leave_while_others_wait(self, [](Collective const&) {
    std::vector<char> heap(std::size_t{256} << 20, 'x');
    std::abort();
  });
}
TEST(FaultsRankExit, abort_is_reported_as_death_and_its_core_omits_the_arenas) {
  test::TemporaryDirectory const temporary;
  auto const job =
      run_ranks(3, "abort_with_core", {.deadline = std::chrono::seconds(200), .arguments = {temporary.path()}});
  expect_lost(job, "died");
  EXPECT_EQ(job.ranks.at(leaver).signal, SIGABRT) << job.text();
#if !defined(__SANITIZE_THREAD__)  // the core would contain its shadow memory
  // Each arena of this job has a virtual size of 256 MiB, and so has the heap. A core with arenas would be larger.
  for (auto const& entry : std::filesystem::directory_iterator(temporary.path())) {
    EXPECT_LT(entry.file_size(), std::uintmax_t{450} << 20) << entry.path();
  }
#endif
}

CROSSRANK_RANK_SCENARIO(throw_in_loop) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto tensors = get_tensors_parallel(test::sample_tensor(self.rank, 1), {leaver, 0, 2}, world);
    for (auto const& tensor : tensors) {
      if (tensor.defined()) throw std::runtime_error("no space on the disk");
    }
    tensors.close();
    world.barrier();
  });
}
TEST(FaultsRankExit, exception_in_the_consumer_loop_ends_the_range_for_all) {
  auto const job = run_ranks(3, "throw_in_loop");
  expect_lost(job, "exception");
  expect_lost(job, "consume");  // the hint names it, because it passes the text on
  EXPECT_EQ(test::verdict_of(job.ranks.at(leaver)).text, "no space on the disk") << job.text();
}

CROSSRANK_RANK_SCENARIO(throw_in_consume) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    get_tensors_parallel(test::sample_tensor(self.rank, 1), {leaver, 0, 2}, world).consume([&](auto&) {
      if (self.rank == leaver) throw std::runtime_error("no space on the disk");
    });
    world.barrier();
  });
}
TEST(FaultsRankExit, exception_in_consume_reaches_the_others_with_its_text) {
  auto const job = run_ranks(3, "throw_in_consume");
  expect_lost(job, "no space on the disk");
  EXPECT_EQ(test::verdict_of(job.ranks.at(leaver)).text, "no space on the disk") << job.text();
}

/// One rank drops its handle and lives until the others have noticed. Argument: directory.
CROSSRANK_RANK_SCENARIO(drop_the_handle) {
  std::filesystem::path const folder = self.arguments.at(0);
  auto const heard = [&](int rank) { return folder / std::to_string(rank); };
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    test::gather_everything(world, 0, 1);
    if (self.rank == leaver) {
      world = Collective();
      auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (!(std::filesystem::exists(heard(0)) && std::filesystem::exists(heard(2))) &&
             std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      return;
    }
    try {
      world.barrier();
    } catch (...) {
      std::ofstream(heard(self.rank)) << "x";
      throw;
    }
  });
}
TEST(FaultsRankExit, dropped_handle_is_reported_while_its_rank_is_alive) {
  test::TemporaryDirectory const temporary;
  auto const job = run_ranks(3, "drop_the_handle", {.arguments = {temporary.path()}});
  auto const verdict = expect_lost(job, "dropped its handle without closing the group");
  EXPECT_THAT(verdict.text, testing::Not(HasSubstr("did not arrive: alive")));
}

/// A child uses the inherited objects, drops them, and exits with its handlers. The parent continues.
void fork_and_misuse(test::RankSelf const& self, Collective& world, std::vector<Tensor>& received,
                     std::vector<Request>& requests) {
  SharedMemoryWorkspace const workspace(world);
  // The child inherits the list of free slots, in which this one is.
  static_cast<void>(workspace.empty({1 << 20}, Dtype::u8));
  pid_t const child = ::fork();
  if (child == 0) {
    bool refused_requests = true;
    for (auto& request : requests)
      refused_requests = !test::say_verdict(self, "child_request", [&] { request.wait(); }) && refused_requests;
    requests.clear();
    bool const refused = !test::say_verdict(self, "child", [&] { world.barrier(); });
    bool const refused_gather = !test::say_verdict(
        self, "child_gather", [&] { get_tensors_parallel(test::sample_tensor(0, 0), world).close(); });
    bool const refused_connect =
        !test::say_verdict(self, "child_connect", [] { (void)connect(test::fault_options()); });
    bool const refused_trim = !test::say_verdict(self, "child_trim", [&] { (void)workspace.trim(); });
    bool const refused_ranks = !test::say_verdict(self, "child_failed_ranks", [&] { (void)world.failed_ranks(); });
    received.clear();
    world = Collective();
    std::exit(refused && refused_gather && refused_connect && refused_requests && refused_trim && refused_ranks ? 0
                                                                                                                : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("the child ended with status " + std::to_string(status));
}

CROSSRANK_RANK_SCENARIO(fork_a_child) {
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    auto received = get_tensors_parallel(test::sample_tensor(self.rank, 1), world).take();
    auto message = Tensor::scalar(0);
    auto sum = Tensor::zeros({100'000}, Dtype::i32);
    std::vector<Request> requests;
    if (self.rank == 0) requests.push_back(world.irecv(message, 1));
    world.barrier();
    // Not earlier: rank 0 could complete the request while it waits for something else, and then the child could wait
    // for it too.
    if (self.rank == 1) world.send(Tensor::scalar(7), 0);
    sum.as_mutable<int>().back() = self.rank + 1;
    requests.push_back(world.iall_reduce(sum));
    if (self.rank == 0) fork_and_misuse(self, world, received, requests);
    for (auto& request : requests) request.wait();
    if (sum.as<int>().back() != 6) throw std::runtime_error("a child took part in a collective");
    if (self.rank == 0 && message.item<int>() != 7) throw std::runtime_error("a child took a message");
    // If the child had released the leases, these gathers would overwrite what rank 0 holds.
    for (int round = 0; round < 20; ++round) test::gather_everything(world, 0, 10 + round);
    for (std::size_t rank = 0; rank < received.size(); ++rank)
      test::require_sample(received[rank], static_cast<int>(rank), 1);
    world.close();
  });
}
/// A child that has threads of its own drops the group. The C library gives them the memory of the library's threads.
CROSSRANK_RANK_SCENARIO(fork_a_child_with_threads) {
  return test::end_with_verdict(self, [&] {
    auto options = test::fault_options();
    options.progress = self.arguments.at(0) == "thread" ? ProgressMode::thread : ProgressMode::caller;
    auto world = connect(options);
    world.barrier();
    pid_t const child = ::fork();
    if (child == 0) {
      std::thread own([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
      world = Collective();
      own.join();
      std::exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      throw std::runtime_error("the child ended with status " + std::to_string(status));
    world.barrier();
    world.close();
  });
}

TEST(FaultsRankExit, forked_child_with_threads_drops_the_group) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a forked child that starts a thread";
#endif
  for (auto const* progress : {"caller", "thread"}) {
    auto const job = run_ranks(2, "fork_a_child_with_threads", {.arguments = {progress}});
    EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  }
}

TEST(FaultsRankExit, forked_child_is_refused_and_harms_no_rank) {
  auto const job = run_ranks(3, "fork_a_child");
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  EXPECT_EQ(test::verdict_of(job.ranks.at(0), "child").code, "usage") << job.text();
  EXPECT_EQ(test::verdict_of(job.ranks.at(0), "child_gather").code, "usage") << job.text();
  EXPECT_EQ(test::verdict_of(job.ranks.at(0), "child_connect").code, "usage") << job.text();
}

}  // namespace
}  // namespace crossrank
