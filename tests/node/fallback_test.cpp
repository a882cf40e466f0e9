#include <atomic>
#include <cerrno>
#include <cstddef>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "lib/platform/system.hpp"
#include "tests/node/rendezvous_support.hpp"
#include "tests/support/leak_check.hpp"
#include "tests/support/process_ranks.hpp"

/// The node layer where the kernel or a filter refuses a system call. Every rank still gets the same results.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

/// A system that refuses some calls, as old kernels and filters do.
struct Refusing : platform::System {
  int memfd_error = 0;
  int socket_error = 0;
  int advice_refused = -1;
  bool no_proc = false;
  int seals_error = 0;
  int named = 0;  ///< number of segments that got a name

  int memfd_create(char const* name, unsigned flags) override {
    return memfd_error != 0 ? fail(memfd_error) : System::memfd_create(name, flags);
  }
  int socket(int domain, int type, int protocol) override {
    return socket_error != 0 ? fail(socket_error) : System::socket(domain, type, protocol);
  }
  int madvise(void* at, std::size_t bytes, int advice) override {
    return advice == advice_refused ? fail(EINVAL) : System::madvise(at, bytes, advice);
  }
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    return no_proc && std::string_view(path).starts_with("/proc/") ? fail(ENOENT)
                                                                   : System::openat(directory, path, flags, mode);
  }
  int fstatat(int directory, char const* path, struct stat* out, int flags) override {
    return no_proc && std::string_view(path).starts_with("/proc/") ? fail(ENOENT)
                                                                   : System::fstatat(directory, path, out, flags);
  }
  int add_seals(int fd, int seals) override {
    return seals_error != 0 ? fail(seals_error) : System::add_seals(fd, seals);
  }
  int shm_open(char const* name, int flags, mode_t mode) override {
    std::lock_guard const lock(mutex_);
    if ((flags & O_CREAT) != 0) ++named;
    return System::shm_open(name, flags, mode);
  }

 private:
  static int fail(int error) {
    errno = error;
    return -1;
  }
  std::mutex mutex_{};
};

/// Calls a barrier and an all_gather that is too large for a line. The ranks are threads that rendezvous as processes
/// do.
void meet_and_gather(Collective world) {
  world.barrier();
  auto const ranks = world.world_size();
  std::vector<std::int32_t> mine(5000, world.rank());
  auto const in = Tensor::of(std::span<std::int32_t const>(mine), {5000});
  auto out = Tensor::zeros({ranks, 5000}, Dtype::i32);
  world.all_gather(out, in);
  for (int rank = 0; rank < ranks; ++rank) {
    auto const part = out.narrow(0, rank, 1).as<std::int32_t>();
    EXPECT_TRUE(std::ranges::all_of(part, [&](auto v) { return v == rank; })) << "from rank " << rank;
  }
  world.close();
}

void run_over(Refusing& system, int ranks = 3) {
  LeakCheck const leaks;
  auto const job = random_job_id();
  {
    platform::ScopedSystem const installed(system);
    std::vector<std::function<void()>> actions;
    for (int rank = 0; rank < ranks; ++rank) {
      actions.emplace_back([&job, rank, ranks] {
        auto options = thread_options(rank, ranks, {.job_id = job});
        options.rank_kind = RankKind::process;
        meet_and_gather(connect(options));
      });
    }
    for (auto const& error : run_threads(actions)) EXPECT_EQ(text_of(error), "");
  }
  EXPECT_THAT(leaks.findings(job), testing::IsEmpty());
}

TEST(Fallback, uses_unlinked_segments_without_memfd) {
  for (int const error : {ENOSYS, EPERM}) {
    Refusing system;
    system.memfd_error = error;
    run_over(system);
    EXPECT_EQ(system.named, 4);  // the control segment and three arenas
  }
}

TEST(Fallback, uses_a_named_segment_without_sockets) {
  Refusing system;
  system.socket_error = EPERM;
  run_over(system);
  EXPECT_GE(system.named, 4);
}

TEST(Fallback, uses_a_named_segment_without_sockets_and_memfd) {
  Refusing system;
  system.socket_error = EACCES;
  system.memfd_error = EPERM;
  run_over(system, 4);
}

TEST(Fallback, compares_process_ids_without_wipe_on_fork) {
  Refusing system;
  system.advice_refused = 18;  // MADV_WIPEONFORK
  run_over(system);
}

TEST(Fallback, touches_each_page_without_populate) {
  Refusing system;
  system.advice_refused = 23;  // MADV_POPULATE_WRITE
  run_over(system);
}

TEST(Fallback, shares_the_descriptor_without_proc) {
  Refusing system;
  system.no_proc = true;
  run_over(system);
}

TEST(Fallback, works_without_seals) {
  Refusing system;
  system.seals_error = EINVAL;
  run_over(system);
}

struct NamedRendezvous : testing::Test {
  NamedRendezvous() { system.socket_error = EPERM; }
  [[nodiscard]] node::NodeOptions options(int rank, int ranks, int ms = 20'000) const {
    return node_options(job, rank, ranks, std::chrono::milliseconds(ms));
  }
  Refusing system;
  std::string job = random_job_id();
  LeakCheck leaks;
  platform::ScopedSystem installed{system};
};

TEST_F(NamedRendezvous, names_a_rank_that_does_not_come) {
  for (auto const& error : join_all({options(0, 3, 1500), options(1, 3, 1500)})) {
    EXPECT_THAT(expect_error<TimeoutError>(error).failed_ranks, testing::ElementsAre(2));
  }
  EXPECT_THAT(leaks.findings(job), testing::IsEmpty());
}

TEST_F(NamedRendezvous, refuses_a_rank_that_comes_twice) {
  auto const errors = join_all({options(0, 2, 1500), options(0, 2, 1500)});
  EXPECT_EQ(std::ranges::count_if(
                errors, [](auto const& e) { return text_of(e).find("connected twice") != std::string::npos; }),
            1);
  EXPECT_THAT(leaks.findings(job), testing::IsEmpty());
}

TEST_F(NamedRendezvous, reports_different_world_sizes_to_all) {
  std::set<std::vector<int>> blamed;
  for (auto const& error : join_all({options(0, 3), options(1, 3), options(2, 4)})) {
    blamed.insert(expect_error<MismatchError>(error).failed_ranks);
    EXPECT_THAT(text_of(error), testing::AllOf(HasSubstr("3 ranks"), HasSubstr("4 ranks")));
  }
  EXPECT_EQ(blamed.size(), 1U);  // the rank that disagreed with the first one
  EXPECT_THAT(leaks.findings(job), testing::IsEmpty());
}

TEST_F(NamedRendezvous, reports_the_failure_to_late_ranks) {
  auto const started = std::chrono::steady_clock::now();
  std::exception_ptr late;
  // The first two ranks fail at the rendezvous. Only then does the third come.
  std::atomic<int> failed{0};
  auto const join_counted = [&](node::NodeOptions const& node_options) {
    try {
      static_cast<void>(node::NodeComm::join(node_options));
    } catch (MismatchError const&) {
      ++failed;
    }
  };
  auto const errors = run_threads({[&] { join_counted(options(0, 3)); }, [&] { join_counted(options(2, 4)); },
                                   [&] {
                                     while (failed == 0) std::this_thread::yield();
                                     late = join_all({options(1, 3)})[0];
                                   }});
  for (auto const& error : errors) EXPECT_EQ(text_of(error), "");
  expect_error<MismatchError>(late);
  EXPECT_EQ(failed, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - started, step_timeout / 2);
  EXPECT_THAT(leaks.findings(job), testing::IsEmpty());
}

/// Installs a filter as containers do. It refuses two calls and allows all others.
void refuse_memfd_and_sockets() {
  constexpr auto arch = AUDIT_ARCH_X86_64;
  std::array<sock_filter, 8> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog const filter{static_cast<unsigned short>(program.size()), program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
  ASSERT_EQ(::memfd_create("x", 0), -1);
  ASSERT_EQ(::socket(AF_UNIX, SOCK_STREAM, 0), -1);
  ASSERT_EQ(errno, EPERM);
}

CROSSRANK_RANK_SCENARIO(gather_under_a_filter) {
  refuse_memfd_and_sockets();
  meet_and_gather(connect({.backend = "shm", .connect_timeout = step_timeout, .arena_cap = std::uint64_t{64} << 20}));
  return 0;
}

TEST(Fallback, works_for_processes_under_a_filter) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the filter of this test is for x86-64";
#endif
  auto const job = run_ranks(3, "gather_under_a_filter");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test
