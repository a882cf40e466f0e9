#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <crossrank/spi/wait_hook.hpp>

#include "lib/node/rendezvous/frames.hpp"
#include "lib/node/rendezvous/rendezvous.hpp"
#include "tests/node/rendezvous_support.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/fake_procfs.hpp"

namespace crossrank::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::HasSubstr;

/// Kind of rendezvous.
enum class Place { socket, threads };

class Rendezvous : public testing::TestWithParam<Place> {
 protected:
  [[nodiscard]] node::NodeOptions options(int rank, int ranks, milliseconds timeout = step_timeout) const {
    auto out = node_options(job, rank, ranks, timeout);
    out.threads = GetParam() == Place::threads;
    return out;
  }
  std::string job = random_job_id();
};

TEST_P(Rendezvous, gives_all_ranks_the_same_memory) {
  for (auto const& error : join_all({options(0, 3), options(1, 3), options(2, 3)})) EXPECT_EQ(text_of(error), "");
}

TEST_P(Rendezvous, names_a_rank_that_does_not_come) {
  auto const errors = join_all({options(0, 3, milliseconds(300)), options(2, 3, milliseconds(300))});
  for (auto const& error : errors) {
    auto const info = expect_error<TimeoutError>(error);
    EXPECT_THAT(info.failed_ranks, ElementsAre(1));
    EXPECT_THAT(info.message, HasSubstr("rank 1 did not connect within 300 ms"));
    EXPECT_THAT(info.resource.empty() ? info.message : info.resource, HasSubstr(job));
  }
}

thread_local auto interrupted_at = steady_clock::time_point::max();

/// A language binding that has seen a signal ends the wait of its thread. The others learn which rank gave up.
TEST_P(Rendezvous, ends_on_all_ranks_when_the_wait_hook_of_one_ends_its_wait) {
  spi::set_wait_hook([]() noexcept -> std::chrono::nanoseconds {
    return milliseconds(steady_clock::now() < interrupted_at ? 10 : -1);
  });
  auto const join = [&](int rank, bool interrupt) {
    return [&, rank, interrupt] {
      if (interrupt) interrupted_at = steady_clock::now() + milliseconds(300);  // it has come by then
      // The rank that leads the start keeps the verdict until the deadline for the rank that never comes.
      static_cast<void>(node::NodeComm::join(options(rank, 3, milliseconds(1500))));
    };
  };
  auto const errors = run_threads({join(0, true), join(2, false)});
  spi::set_wait_hook(nullptr);
  EXPECT_NE(text_of(errors[0]), "");
  EXPECT_THAT(expect_error<PeerLostError>(errors[1]).failed_ranks, ElementsAre(0));
}

TEST_P(Rendezvous, is_kept_for_late_ranks_no_longer_than_it_lingers) {
  auto const join = [&](int rank, int ranks) {
    auto own_options = options(rank, ranks, std::chrono::hours(1));
    own_options.linger = milliseconds(1);
    return own_options;
  };
  // Without the limit the server would wait for the third rank for an hour.
  for (auto const& error : join_all({join(0, 3), join(1, 4)})) static_cast<void>(expect_error<MismatchError>(error));
}

TEST_P(Rendezvous, refuses_a_rank_that_comes_twice) {
  auto const errors = join_all({options(0, 2, milliseconds(500)), options(0, 2, milliseconds(500))});
  int twice = 0;
  for (auto const& error : errors) {
    if (text_of(error).find("connected twice") == std::string::npos) {
      if (GetParam() == Place::socket) {
        EXPECT_THAT(expect_error<TimeoutError>(error).got, HasSubstr("a second process for rank 0 (pid "));
      }
      continue;
    }
    ++twice;
    EXPECT_THAT(text_of(error), testing::Not(HasSubstr("connect: connect")));
    auto const info = expect_error<UsageError>(error);
    if (GetParam() == Place::socket) {
      EXPECT_THAT(info.message + info.got, HasSubstr("pid " + std::to_string(::getpid())));
    }
  }
  EXPECT_EQ(twice, 1);
}

TEST_P(Rendezvous, reports_different_world_sizes_to_all) {
  auto const started = steady_clock::now();
  auto const errors = join_all({options(0, 3), options(1, 3), options(2, 4)});
  for (auto const& error : errors) {
    auto const info = expect_error<MismatchError>(error);
    EXPECT_THAT(text_of(error), HasSubstr("3"));
    EXPECT_THAT(text_of(error), HasSubstr("4"));
  }
  EXPECT_LT(steady_clock::now() - started, step_timeout / 2);
}

INSTANTIATE_TEST_SUITE_P(At, Rendezvous, testing::Values(Place::socket, Place::threads),
                         [](auto const& one) { return one.param == Place::socket ? "a_socket" : "threads"; });

void await_count(std::atomic<int> const& count, int wanted) {
  auto const until = steady_clock::now() + step_timeout;
  while (count < wanted && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
}

/// Arguments: whether the start is by named segments, the number of ranks, and the rank that is stopped.
class StoppedStart : public testing::TestWithParam<std::tuple<bool, int, int>> {
 protected:
  [[nodiscard]] std::unique_ptr<node::Rendezvous> rendezvous(node::NodeOptions const& options) const {
    return std::get<0>(GetParam()) ? node::named_rendezvous(options) : node::socket_rendezvous(options);
  }
};

/// The stopped rank has attached, and continues after the others have given up. The start fails on it as well.
TEST_P(StoppedStart, fails_on_all_ranks) {
  auto const [named, ranks, stopped] = GetParam();
  auto const job = random_job_id();
  std::latch attached(ranks);
  std::atomic<int> ended{0};
  std::vector<std::function<void()>> actions;
  for (int rank = 0; rank < ranks; ++rank) {
    actions.emplace_back([&, this, rank, all = ranks, victim = stopped] {
      auto const start = rendezvous(node_options(job, rank, all, milliseconds(700)));
      auto const memory = start->attach();
      attached.arrive_and_wait();
      if (rank == victim) await_count(ended, all - 1);
      auto const error = thrown<TimeoutError>([&] { start->ready(); });
      ++ended;
      throw error;
    });
  }
  for (auto const& error : run_threads(actions)) {
    auto const info = expect_error<TimeoutError>(error);
    EXPECT_THAT(info.failed_ranks, ElementsAre(stopped)) << info.message;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoppedStart,
                         testing::Combine(testing::Bool(), testing::Values(2, 3), testing::Values(0, 1)),
                         [](auto const& one) {
                           return std::string(std::get<0>(one.param) ? "named" : "sockets") + "_" +
                                  std::to_string(std::get<1>(one.param)) + "_ranks_of_which_" +
                                  std::to_string(std::get<2>(one.param)) + "_is_stopped";
                         });

/// The server has decided that the start succeeds and told one client. The other one joins when its time is over.
TEST(SocketRendezvous, succeeds_on_all_ranks_although_the_server_is_stopped_after_its_decision) {
  class StopsBeforeTheSecondStart final : public platform::System {
   public:
    ssize_t sendmsg(int fd, msghdr const* message, int flags) override {
      auto const& part = message->msg_iov[0];
      if (part.iov_len == sizeof(node::Frame)) {
        node::Frame frame;
        std::memcpy(&frame, part.iov_base, sizeof frame);
        if (frame.kind == node::Frame::Kind::start && ++starts == 2) await_count(joined, 2);
      }
      return System::sendmsg(fd, message, flags);
    }
    std::atomic<int> starts{0};
    std::atomic<int> joined{0};
  } system;
  platform::ScopedSystem const installed(system);
  auto const job = random_job_id();
  std::vector<std::function<void()>> actions;
  for (int rank = 0; rank < 3; ++rank) {
    actions.emplace_back([&, rank] {
      auto const start = node::socket_rendezvous(node_options(job, rank, 3, milliseconds(700)));
      auto const memory = start->attach();
      start->ready();
      ++system.joined;
    });
  }
  for (auto const& error : run_threads(actions)) EXPECT_EQ(text_of(error), "");
}

TEST(ThreadRendezvous, reports_the_failure_to_late_ranks_and_then_allows_a_retry) {
  auto const job = random_job_id();
  auto const join = [&](int rank, milliseconds timeout) {
    auto options = node_options(job, rank, 2, timeout);
    options.threads = true;
    return options;
  };
  static_cast<void>(expect_error<TimeoutError>(join_all({join(0, milliseconds(20))})[0]));

  auto const late = expect_error<TimeoutError>(join_all({join(1, std::chrono::seconds(20))})[0]);
  EXPECT_THAT(late.message, HasSubstr("rank 1 did not connect within 20 ms"));

  for (auto const& error : join_all({join(0, std::chrono::seconds(20)), join(1, std::chrono::seconds(20))}))
    EXPECT_EQ(text_of(error), "");
}

/// Has no memory left for shared memory after the first segments.
class ExhaustedSystem : public platform::System {
 public:
  int memfd_create(char const* name, unsigned flags) override {
    if (++made_ > 2) throw std::bad_alloc();
    return platform::System::memfd_create(name, flags);
  }

 private:
  std::atomic<int> made_ = 0;
};

TEST(ThreadRendezvous, reports_an_exhausted_memory_to_all_ranks_at_once) {
  ExhaustedSystem exhausted;
  platform::ScopedSystem const installed(exhausted);
  auto const job = random_job_id();
  std::vector<node::NodeOptions> all{node_options(job, 0, 2), node_options(job, 1, 2)};
  for (auto& options : all) options.threads = true;
  auto const started = steady_clock::now();
  auto const errors = join_all(all);
  EXPECT_LT(steady_clock::now() - started, step_timeout / 2);
  auto const first = expect_error<IoError>(errors[0]);
  EXPECT_THAT(first.message, HasSubstr("has no memory left"));
  EXPECT_EQ(first.failed_ranks.size(), 1U);
  EXPECT_EQ(expect_error<IoError>(errors[1]).message, first.message);
}

TEST(SocketRendezvous, names_a_squatter_of_the_same_user) {
  auto const job = random_job_id();
  int const squatter = RendezvousAddress(job).squat(16);
  ASSERT_GE(squatter, 0);
  auto const info = expect_error<TimeoutError>(join_all({node_options(job, 0, 2, milliseconds(300))})[0]);
  EXPECT_THAT(info.message, HasSubstr("pid " + std::to_string(::getpid())));
  ::close(squatter);
}

TEST(SocketRendezvous, gives_up_on_a_squatter_whose_backlog_is_full) {
  auto const job = random_job_id();
  RendezvousAddress const place(job);
  int const squatter = place.squat(0);
  std::vector<int> visitors;
  for (int visitor = place.visit(); visitor >= 0; visitor = place.visit()) visitors.push_back(visitor);
  EXPECT_THAT(expect_error<TimeoutError>(join_all({node_options(job, 0, 2, milliseconds(300))})[0]).resource,
              HasSubstr(job));
  for (int const visitor : visitors) ::close(visitor);
  ::close(squatter);
}

TEST(SocketRendezvous, is_not_delayed_by_a_silent_connection) {
  auto const job = random_job_id();
  std::vector<std::exception_ptr> errors;
  int visitor = -1;
  errors = run_threads({[&] { static_cast<void>(node::NodeComm::join(node_options(job, 0, 2))); },
                        [&] {
                          while ((visitor = RendezvousAddress(job).visit()) < 0) std::this_thread::yield();
                          ::close(visitor);
                          static_cast<void>(node::NodeComm::join(node_options(job, 1, 2)));
                        }});
  for (auto const& error : errors) EXPECT_EQ(text_of(error), "");
}

/// Forks a child that becomes another user, listens on the rendezvous address, and reports that on `ready`.
pid_t squat_as_nobody(std::string const& job, int ready) {
  RendezvousAddress const place(job);
  pid_t const child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::setuid(65534) != 0 || place.squat(16) < 0) ::_exit(1);
  if (::write(ready, "x", 1) != 1) ::_exit(1);
  while (true) ::pause();
}

TEST(SocketRendezvous, refuses_a_squatter_of_another_user) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto const job = random_job_id();
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
  pid_t const child = squat_as_nobody(job, ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto const info = expect_error<UnavailableError>(join_all({node_options(job, 0, 2)})[0]);
  EXPECT_THAT(info.got, HasSubstr("uid 65534"));
  EXPECT_THAT(info.got, HasSubstr("pid " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

/// A batch system limits the control group of the job, not the root of the tree.
TEST(Arenas, are_capped_at_half_of_the_control_group_limit) {
  FakeProcFs kernel;
  kernel.own_groups("0::/system.slice/job.scope");
  kernel.mounts("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
  kernel.put("/sys/fs/cgroup/system.slice/job.scope/memory.max", "157286400");
  platform::ScopedSystem const installed(kernel);
  auto options = node_options("job", 0, 3);
  options.cap_bytes.reset();
  EXPECT_EQ(node::choose_sizes(options, 0).cap_bytes, 78'643'200U);
}

/// An arena has its whole virtual size from the start, and `ulimit -f` limits the size of a file.
TEST(Arenas, stay_below_the_file_size_limit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit const limited{.rlim_cur = rlim_t{64} << 20, .rlim_max = before.rlim_max};
  auto options = node_options("job", 0, 3);
  options.cap_bytes = std::uint64_t{1} << 30;
  auto const unlimited = node::choose_sizes(options, node::address_space_left(3)).arena_bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  auto const sizes = node::choose_sizes(options, node::address_space_left(3));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_GT(unlimited, std::uint64_t{64} << 20);
  EXPECT_EQ(sizes.arena_bytes, std::uint64_t{64} << 20);
}

}  // namespace
}  // namespace crossrank::test
