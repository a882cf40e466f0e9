// How ranks notice a death: soon, whichever ranks are stopped, and without reading a file of every other rank all the
// time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "lib/platform/system.hpp"
#include "tests/faults/fault_report.hpp"

namespace crossrank::watchdog_test {
namespace {

using test::ProcessRanks;
using testing::HasSubstr;

constexpr auto step_timeout = std::chrono::seconds(100);

// ---------------------------------------------------------------- before the first heartbeat

/// A futex wait that does not time out. A death is noticed only if the kernel or a peer wakes the waiting rank.
struct EndlessNaps : platform::System {
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds) override {
    return System::futex_wait(word, expected, std::chrono::hours(1));
  }
};

CROSSRANK_RANK_SCENARIO(die_before_the_first_heartbeat) {
  EndlessNaps endless;
  platform::ScopedSystem const installed(endless);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options(std::chrono::hours(1)));
    if (self.rank == 1) ::kill(::getpid(), SIGKILL);
    world.barrier();
  });
}

TEST(FaultsWatchdog, notices_a_death_before_the_first_heartbeat) {
  for (int trial = 0; trial < 5; ++trial) {
    auto const job = test::run_ranks(4, "die_before_the_first_heartbeat", {.deadline = step_timeout});
    auto const verdict = test::expect_one_verdict(job, {1});
    EXPECT_EQ(verdict.code, "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(1)) << job.text();
    if (HasFailure()) break;
  }
}

// ---------------------------------------------------------------- no watchdog at all

/// Turns the process into one of a user who may start no process or thread. Returns false if that is not possible.
bool become_a_user_without_threads() {
  constexpr unsigned nobody = 65534;
  rlimit const none{.rlim_cur = 0, .rlim_max = 0};
  if (::setrlimit(RLIMIT_NPROC, &none) != 0) return false;
  if (::geteuid() != 0) return true;
  return ::setgroups(0, nullptr) == 0 && ::setresgid(nobody, nobody, nobody) == 0 &&
         ::setresuid(nobody, nobody, nobody) == 0;
}

CROSSRANK_RANK_SCENARIO(connect_without_threads) {
  if (!become_a_user_without_threads()) return 77;
  return test::end_with_verdict(self, [&] { static_cast<void>(connect(test::fault_options(step_timeout))); });
}

TEST(FaultsWatchdog, reports_that_the_system_refused_its_thread) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the leak sanitizer needs a thread of its own";
#endif
  auto const job = test::run_ranks(2, "connect_without_threads", {.deadline = step_timeout});
  if (job.ranks.front().exit_code == 77) GTEST_SKIP() << "this process cannot become an ordinary user";
  auto const verdict = test::expect_one_verdict(job);
  EXPECT_EQ(verdict.code, "unavailable") << job.text();
  EXPECT_THAT(verdict.text, HasSubstr("watchdog thread")) << job.text();
}

// ---------------------------------------------------------------- files that a waiting rank reads

bool is_status_of_a_process(std::string_view path) { return path.starts_with("/proc/") && path.ends_with("/status"); }

/// Counts the naps of this process and how often it reads the state of a process.
struct CountingSystem : platform::System {
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    if (is_status_of_a_process(path)) ++reads;
    return System::openat(directory, path, flags, mode);
  }
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
    ++naps;
    return System::futex_wait(word, expected, limit);
  }
  std::atomic<int> reads{0};
  std::atomic<int> naps{0};
};

/// The last rank waits for a signal before it enters the barrier. The others wait for it, and print a line when they
/// have napped often enough. All print how often they read the state of a process.
CROSSRANK_RANK_SCENARIO(wait_for_a_late_rank) {
  constexpr int polls = 40;
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
  struct Saying : CountingSystem {
    explicit Saying(test::RankSelf const& its_self) : self(its_self) {}
    int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
      int const result = CountingSystem::futex_wait(word, expected, limit);
      // Two threads count: the number may jump past the limit.
      if (naps >= polls && !has_printed.exchange(true)) self.say("polled");
      return result;
    }
    test::RankSelf const& self;
    std::atomic<bool> has_printed{false};
  } counting(self);
  platform::ScopedSystem const installed(counting);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options(step_timeout));
    if (self.rank + 1 == world.world_size()) {
      int signal = 0;
      ::sigwait(&usr1, &signal);
    }
    world.barrier();
    self.say("counted " + std::to_string(counting.reads) + " " + std::to_string(counting.naps));
    world.barrier();
  });
}

TEST(FaultsWatchdog, reads_at_most_one_file_per_nap) {
  constexpr int ranks = 8;
  ProcessRanks job(ranks, "wait_for_a_late_rank", {.deadline = 2 * step_timeout});
  for (int rank = 0; rank + 1 < ranks; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "polled", step_timeout));
  job.signal(ranks - 1, SIGUSR1);
  auto const outcome = job.wait();

  EXPECT_EQ(test::expect_one_verdict(outcome).code, "ok") << outcome.text();
  for (auto const& rank : outcome.ranks) {
    auto const at = rank.out.find("counted ");
    ASSERT_NE(at, std::string::npos) << outcome.text();
    char* end = nullptr;
    long const reads = std::strtol(rank.out.c_str() + at + std::string_view("counted ").size(), &end, 10);
    long const naps = std::strtol(end, nullptr, 10);
    EXPECT_LE(reads, naps) << outcome.text();
  }
}

// ---------------------------------------------------------------- core dumps

/// A kernel that reports that one process is writing its core dump.
struct DumpingSystem : platform::System {
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    if (path != "/proc/" + std::to_string(pid.load()) + "/status") return System::openat(directory, path, flags, mode);
    constexpr std::string_view text = "Name:\trank\nCoreDumping:\t1\nTHP_enabled:\t1\n";
    int const fd = ::memfd_create("status", MFD_CLOEXEC);
    if (fd >= 0 && ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return -1;
    return fd;
  }
  std::atomic<int> pid{-1};
};

/// Passes barriers over and over. The last rank stays away from the second one, and the kernel reports that it dumps
/// its core.
CROSSRANK_RANK_SCENARIO(lose_one_to_its_core_dump) {
  DumpingSystem dumping;
  platform::ScopedSystem const installed(dumping);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options(step_timeout));
    world.barrier();
    int const last = world.world_size() - 1;
    dumping.pid = node::group_of(world.transport()->node_memory())->comm().record(last).pid;
    self.say("working");
    while (self.rank == last) ::pause();
    for (;;) world.barrier();
  });
}

/// Other ranks see a process that dumps its core as stopped. Its liveness word does not change until the dump is
/// complete.
void expect_core_dump_is_found(std::vector<int> const& stopped_too) {
  constexpr int victim = 3;
  ProcessRanks job(victim + 1, "lose_one_to_its_core_dump", {.deadline = 3 * step_timeout});
  for (int rank = 0; rank <= victim; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  for (int const rank : stopped_too) job.signal(rank, SIGSTOP);
  job.signal(victim, SIGSTOP);
  for (int rank = 0; rank < victim; ++rank) {
    bool const stopped = std::find(stopped_too.begin(), stopped_too.end(), rank) != stopped_too.end();
    ASSERT_TRUE(stopped || job.wait_for_exit(rank, step_timeout)) << rank;
  }
  job.signal(victim, SIGKILL);
  for (int const rank : stopped_too) job.signal(rank, SIGCONT);
  auto const outcome = job.wait();

  auto const verdict = test::expect_one_verdict(outcome, {victim});
  EXPECT_EQ(verdict.code, "peer_lost") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(victim)) << outcome.text();
  EXPECT_THAT(verdict.text, HasSubstr("died")) << outcome.text();
}

TEST(FaultsWatchdog, notices_a_core_dump) { expect_core_dump_is_found({}); }

TEST(FaultsWatchdog, notices_a_core_dump_while_a_neighbour_is_stopped) { expect_core_dump_is_found({2}); }

TEST(FaultsWatchdog, notices_a_core_dump_while_all_but_one_are_stopped) { expect_core_dump_is_found({1, 2}); }

}  // namespace
}  // namespace crossrank::watchdog_test
