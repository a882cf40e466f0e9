#include "lib/platform/system.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lib/platform/files/fd.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/retry.hpp"
#include "tests/support/faulty_system.hpp"

namespace crossrank::platform {
namespace {

using namespace std::chrono_literals;

bool closes_on_exec(int fd) { return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

TEST(System, makes_descriptors_that_close_on_exec) {
  Fd const file(system().openat(AT_FDCWD, "/proc/self/maps", O_RDONLY, 0));
  Fd const memory(system().memfd_create("test", 0));
  Fd const socket(system().socket(AF_UNIX, SOCK_STREAM, 0));
  for (auto const* fd : {&file, &memory, &socket}) {
    ASSERT_TRUE(fd->valid());
    EXPECT_TRUE(closes_on_exec(fd->get()));
  }
}

/// What the process prints must not go into a file of ours.
TEST(System, makes_no_descriptor_in_the_place_of_a_closed_standard_stream) {
  int const before = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10);
  ::close(STDIN_FILENO);
  Fd const file(system().openat(AT_FDCWD, "/proc/self/maps", O_RDONLY, 0));
  Fd const memory(system().memfd_create("test", 0));
  Fd const socket(system().socket(AF_UNIX, SOCK_STREAM, 0));
  EXPECT_EQ(::fcntl(STDIN_FILENO, F_GETFD), -1);
  for (auto const* fd : {&file, &memory, &socket}) {
    EXPECT_GT(fd->get(), STDERR_FILENO);
    EXPECT_TRUE(closes_on_exec(fd->get()));
  }
  if (before < 0) return;
  ::dup2(before, STDIN_FILENO);
  ::close(before);
}

TEST(System, seals_memory_against_truncation) {
  Fd const memory(system().memfd_create("test", MFD_ALLOW_SEALING));
  ASSERT_EQ(system().ftruncate(memory.get(), 4096), 0);
  ASSERT_EQ(system().add_seals(memory.get(), F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(system().ftruncate(memory.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

/// The signal of `ulimit -f` kills by default, and an unnamed memory file counts as a file.
TEST(System, reports_the_file_size_limit_instead_of_dying) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  Fd const memory(system().memfd_create("test", 0));
  rlimit const limited{.rlim_cur = 8192, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  int const truncated = system().ftruncate(memory.get(), 16384) == 0 ? 0 : errno;
  int const reserved = system().fallocate(memory.get(), 0, 0, 16384) == 0 ? 0 : errno;
  int const written = system().pwrite(memory.get(), "x", 1, 8192) == 1 ? 0 : errno;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(truncated, EFBIG);
  EXPECT_EQ(reserved, EFBIG);
  EXPECT_EQ(written, EFBIG);
  sigset_t pending{};
  EXPECT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  EXPECT_EQ(system().pwrite(memory.get(), "x", 1, 8192), 1);
}

TEST(System, returns_from_a_futex_wait_when_the_time_is_up) {
  std::uint32_t const word = 1;
  EXPECT_EQ(system().futex_wait(&word, 1, 1ms), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_EQ(system().futex_wait(&word, 2, 1s), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(System, wakes_a_sleeper_through_another_mapping_of_the_word) {
  Fd const memory(system().memfd_create("test", 0));
  ASSERT_EQ(system().ftruncate(memory.get(), 4096), 0);
  auto const map = [&] {
    return static_cast<std::uint32_t*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
  };
  auto* const here = map();
  auto* const there = map();
  std::thread sleeper([&] {
    while (std::atomic_ref<std::uint32_t>(*there).load() == 0) system().futex_wait(there, 0, 10s);
  });
  std::atomic_ref<std::uint32_t>(*here).store(1);
  // a private futex would be keyed by address, and this wake-up would reach no thread
  system().futex_wake(here, 1);
  sleeper.join();
  ::munmap(here, 4096);
  ::munmap(there, 4096);
}

TEST(System, fills_more_random_bytes_than_one_call_returns) {
  std::array<std::byte, 4096> bytes{};
  ASSERT_EQ(system().random(bytes), 0);
  EXPECT_NE(std::count(bytes.begin() + 2048, bytes.end(), std::byte{0}), 2048);
}

TEST(System, is_replaced_only_for_a_scope) {
  auto* const before = &system();
  test::FaultySystem replacement;
  {
    ScopedSystem const scope(replacement);
    EXPECT_EQ(&system(), &replacement);
  }
  EXPECT_EQ(&system(), before);
}

TEST(Fd, closes_once_through_the_seam) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  {
    Fd first(system().memfd_create("test", 0));
    Fd second(std::move(first));
    // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): tests the moved-from state
    EXPECT_FALSE(first.valid());
    EXPECT_TRUE(second.valid());
  }
  EXPECT_EQ(os.uses(test::Call::close), 1);
}

TEST(Fd, reports_a_failed_close_and_releases_the_descriptor) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.fail(test::Call::close, 1, ENOSPC);
  Fd fd(system().memfd_create("test", 0));
  EXPECT_EQ(fd.close(), ENOSPC);
  EXPECT_FALSE(fd.valid());
  EXPECT_EQ(fd.close(), 0);
  EXPECT_EQ(os.uses(test::Call::close), 1);
}

TEST(ThrowIo, names_call_resource_and_errno) {
  try {
    throw_io("workspace: fsync", "/some/file", ENOSPC, "free space");
  } catch (IoError const& error) {
    EXPECT_EQ(error.system_errno(), ENOSPC);
    EXPECT_EQ(error.info().resource, "/some/file");
    EXPECT_NE(error.info().system.find("ENOSPC"), std::string::npos);
  }
}

TEST(RetryInterrupted, gives_up_on_a_call_that_is_always_interrupted) {
  int calls = 0;
  int const result = retry_interrupted([&] {
    ++calls;
    errno = EINTR;
    return -1;
  });
  EXPECT_EQ(result, -1);
  EXPECT_LE(calls, 1000);
  EXPECT_GE(calls, 2);
}

}  // namespace
}  // namespace crossrank::platform
