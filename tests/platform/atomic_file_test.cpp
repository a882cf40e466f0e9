#include "lib/platform/files/atomic_file.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::platform {
namespace {

using test::Call;

std::string const content = "the quick brown fox jumps over the lazy dog";

std::span<std::byte const> bytes_of(std::string const& text) { return std::as_bytes(std::span(text)); }

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : directory_(Directory::open(root_.path(), "test")) {}

  void commit(std::string const& name = "file") const {
    AtomicFile file(directory_, name, content.size(), "test");
    file.write(bytes_of(content));
    file.commit();
  }
  [[nodiscard]] std::string read(std::string const& name) const {
    std::ifstream in(root_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] std::vector<std::string> names() const { return directory_.names("test"); }

  test::TemporaryDirectory root_{};
  Directory directory_;
};

TEST_F(AtomicFileTest, appears_with_all_its_bytes_and_nothing_beside_it) {
  commit();
  EXPECT_EQ(read("file"), content);
  EXPECT_THAT(names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, is_readable_for_the_owner_only_or_as_the_umask_allows) {
  auto const permissions = [&](std::string const& name, Readers readers) {
    AtomicFile file(directory_, name, 0, "test", readers);
    file.commit();
    return std::filesystem::status(root_.path() / name).permissions();
  };
  auto const before = ::umask(S_IWGRP | S_IRWXO);
  auto const own = permissions("own", Readers::owner);
  auto const shared = permissions("shared", Readers::as_umask);
  ::umask(0777);
  auto const least = permissions("least", Readers::as_umask);
  ::umask(before);
  EXPECT_EQ(own, std::filesystem::perms{0600});
  EXPECT_EQ(shared, std::filesystem::perms{0640});
  EXPECT_EQ(least, std::filesystem::perms{0600});
}

TEST_F(AtomicFileTest, is_hidden_and_locked_until_committed) {
  AtomicFile file(directory_, "file", content.size(), "test");
  file.write(bytes_of(content));
  EXPECT_THAT(names(), ::testing::ElementsAre(file.temporary_name()));
  EXPECT_EQ(file.temporary_name().front(), '.');
  EXPECT_EQ(final_name_of_temporary(file.temporary_name()), "file");
  EXPECT_TRUE(is_temporary_of(file.temporary_name(), "file"));
  EXPECT_FALSE(is_temporary_of(file.temporary_name(), "file2"));
  Fd const other(system().openat(directory_.fd(), file.temporary_name().c_str(), O_RDWR, 0));
  EXPECT_EQ(system().flock(other.get(), LOCK_EX | LOCK_NB), -1);
}

TEST_F(AtomicFileTest, may_have_the_longest_name_of_the_file_system) {
  std::string const ascii(255, 'n');
  std::string accents;
  for (int i = 0; i < 127; ++i) accents += "\u00e9";
  for (auto const& name : {ascii, accents}) {
    AtomicFile file(directory_, name, content.size(), "test");
    auto const part = final_name_of_temporary(file.temporary_name());
    EXPECT_FALSE(part.empty());
    EXPECT_TRUE(name.starts_with(part));
    EXPECT_TRUE(name == ascii || part.size() % 2 == 0) << "a character is cut";
    EXPECT_TRUE(is_temporary_of(file.temporary_name(), name));
    file.write(bytes_of(content));
    file.commit();
    EXPECT_EQ(read(name), content);
  }
  EXPECT_THAT(names(), ::testing::UnorderedElementsAre(ascii, accents));
}

/// Cleans up between the creation of a file and its lock.
struct CleanerInBetween final : System {
  explicit CleanerInBetween(Directory const& its_directory) : directory(its_directory) {}
  int flock(int fd, int operation) override {
    if (!std::exchange(done, true)) {
      for (auto const& name : directory.names("clean")) EXPECT_TRUE(directory.remove(name, "clean"));
    }
    return System::flock(fd, operation);
  }
  Directory const& directory;
  bool done = false;
};

TEST_F(AtomicFileTest, is_created_again_when_it_was_removed_before_its_lock) {
  CleanerInBetween cleaner(directory_);
  ScopedSystem const scope(cleaner);
  commit();
  EXPECT_TRUE(cleaner.done);
  EXPECT_EQ(read("file"), content);
  EXPECT_THAT(names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, is_readable_by_its_owner_only) {
  commit();
  struct stat status {};
  ASSERT_EQ(system().fstatat(directory_.fd(), "file", &status, 0), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(status.st_nlink, 1U);
}

TEST_F(AtomicFileTest, leaves_nothing_when_not_committed) {
  {
    AtomicFile file(directory_, "file", 10, "test");
    file.write(bytes_of(content));
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(AtomicFileTest, patches_bytes_written_before) {
  AtomicFile file(directory_, "file", content.size(), "test");
  file.write(bytes_of(content));
  file.write_at(4, bytes_of("QUICK"));
  file.commit();
  EXPECT_EQ(read("file"), "the QUICK brown fox jumps over the lazy dog");
}

TEST_F(AtomicFileTest, accepts_its_bytes_in_any_order) {
  AtomicFile file(directory_, "file", content.size(), "test");
  file.write_at(10, bytes_of(content).subspan(10));
  EXPECT_EQ(file.size(), content.size());
  file.write_at(0, bytes_of(content).first(10));
  EXPECT_EQ(file.size(), content.size());
  file.commit();
  EXPECT_EQ(read("file"), content);
}

TEST_F(AtomicFileTest, has_the_length_that_was_written_not_expected) {
  for (std::uint64_t const expected : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{100'000}}) {
    auto const name = "file" + std::to_string(expected);
    AtomicFile file(directory_, name, expected, "test");
    file.write(bytes_of(content));
    file.commit();
    EXPECT_EQ(read(name), content);
  }
}

TEST_F(AtomicFileTest, refuses_a_name_that_exists) {
  commit();
  EXPECT_THROW(commit(), IoError);
  EXPECT_EQ(read("file"), content);
  EXPECT_THAT(names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, survives_short_writes_and_interruptions) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.limit_transfers(5);
  os.fail(Call::pwrite, 3, EINTR, 4);
  commit();
  EXPECT_EQ(read("file"), content);
}

TEST_F(AtomicFileTest, tolerates_calls_that_file_systems_do_not_support) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.fail(Call::fallocate, 1, EOPNOTSUPP);
  os.fail(Call::fsync, 2, EINVAL);  // fsync of the directory
  os.fail(Call::flock, 1, ENOLCK);
  os.fail(Call::close, 1, EINTR);
  commit();
  EXPECT_EQ(read("file"), content);
}

TEST_F(AtomicFileTest, renames_when_links_are_not_supported) {
  for (int const error : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK}) {
    test::FaultySystem os;
    ScopedSystem const scope(os);
    os.fail(Call::linkat, 1, error);
    auto const name = "file" + std::to_string(error);
    commit(name);
    EXPECT_EQ(read(name), content);
    EXPECT_EQ(os.uses(Call::renameat), 1);
    EXPECT_THROW(commit(name), IoError) << "a rename must not replace a file";
  }
  EXPECT_EQ(names().size(), 4U);
}

/// Makes a link but reports a failure, as after a repeated NFS request.
class LyingLink final : public test::FaultySystem {
 public:
  int linkat(int from_directory, char const* from, int to_directory, char const* to) override {
    if (FaultySystem::linkat(from_directory, from, to_directory, to) != 0) return -1;
    errno = EEXIST;
    return -1;
  }
};

TEST_F(AtomicFileTest, recognises_its_own_link_after_a_reported_failure) {
  LyingLink os;
  ScopedSystem const scope(os);
  commit();
  EXPECT_EQ(read("file"), content);
  EXPECT_THAT(names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, fails_when_the_file_system_lost_bytes) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.on_fstat = [](struct stat& status) { status.st_size -= 1; };
  try {
    commit();
    FAIL() << "published a short file";
  } catch (IoError const& error) {
    EXPECT_EQ(error.info().expected, std::to_string(content.size()) + " bytes");
    EXPECT_EQ(error.info().got, std::to_string(content.size() - 1) + " bytes");
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(AtomicFileTest, syncs_its_bytes_before_its_name_and_its_name_before_success) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  commit();
  EXPECT_THAT(os.history(), ::testing::ElementsAre(Call::random, Call::openat, Call::flock, Call::fstat,
                                                   Call::fallocate, Call::pwrite, Call::fsync, Call::fstat, Call::close,
                                                   Call::linkat, Call::unlinkat, Call::fsync));
}

TEST_F(AtomicFileTest, reports_the_bytes_written_and_the_space_left) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.limit_transfers(10);
  os.fail(Call::pwrite, 3, ENOSPC);
  try {
    commit();
    FAIL() << "published without space";
  } catch (IoError const& error) {
    EXPECT_EQ(error.system_errno(), ENOSPC);
    EXPECT_THAT(error.info().message, ::testing::HasSubstr("20 bytes were written"));
    EXPECT_THAT(error.info().message, ::testing::ContainsRegex("free there: [0-9]+ of [0-9]+ bytes"));
    EXPECT_FALSE(error.info().hint.empty());
  }
}

TEST_F(AtomicFileTest, says_that_inodes_are_missing) {
  test::FaultySystem os;
  ScopedSystem const scope(os);
  os.on_fstatvfs = [](struct statvfs& space) {
    space.f_files = 1000;
    space.f_favail = 0;
  };
  os.fail(Call::openat, 1, ENOSPC);
  try {
    commit();
    FAIL() << "published without an inode";
  } catch (IoError const& error) {
    EXPECT_THAT(error.info().hint, ::testing::HasSubstr("no free inodes"));
  }
}

TEST_F(AtomicFileTest, says_that_the_directory_was_removed) {
  std::filesystem::remove(root_.path());
  try {
    commit();
    FAIL() << "published in a removed directory";
  } catch (IoError const& error) {
    EXPECT_EQ(error.system_errno(), ENOENT);
    EXPECT_THAT(error.info().message, ::testing::HasSubstr("the directory was removed meanwhile"));
    EXPECT_THAT(error.info().message, ::testing::Not(::testing::HasSubstr("free there")));
  }
}

/// Tries every errno at the first, second and last use of every call: either it fails and leaves nothing, or it
/// succeeds and the file is complete.
TEST_F(AtomicFileTest, never_reports_success_without_the_file_when_any_call_fails) {
  constexpr std::array calls{Call::openat,    Call::close,  Call::pwrite,   Call::fsync, Call::fstat,
                             Call::fallocate, Call::linkat, Call::unlinkat, Call::flock, Call::random};
  constexpr std::array errors{ENOSPC, EDQUOT, EIO, ESTALE, EINTR, EAGAIN, EACCES, EROFS};
  std::array<int, test::call_count> uses{};
  {
    test::FaultySystem os;
    ScopedSystem const scope(os);
    os.limit_transfers(20);
    commit("counted");
    for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = os.uses(static_cast<Call>(i));
  }
  int failures = 0;
  for (auto const call : calls) {
    int const last = uses[as_index(call)];
    ASSERT_GT(last, 0) << test::call_names[as_index(call)] << " is not on the way";
    for (int const error : errors) {
      for (int const nth : {1, 2, last}) {
        if (nth > last) continue;
        auto const what = std::string(test::call_names[as_index(call)]) + " use " + std::to_string(nth) + " errno " +
                          std::to_string(error);
        auto const before = names();
        auto const name = "file." + std::to_string(failures++);
        test::FaultySystem os;
        os.limit_transfers(20);
        os.fail(call, nth, error);
        bool published = false;
        {
          ScopedSystem const scope(os);
          try {
            commit(name);
            published = true;
          } catch (IoError const& failed) {
            EXPECT_EQ(failed.system_errno(), error) << what;
          }
        }
        auto expected = before;
        if (published) {
          EXPECT_EQ(read(name), content) << what;
          EXPECT_TRUE(error == EINTR || call == Call::flock) << what << " was swallowed";
          expected.push_back(name);
          std::sort(expected.begin(), expected.end());
        }
        EXPECT_EQ(names(), expected) << what;
      }
    }
  }
  EXPECT_GT(failures, 100);
}

TEST_F(AtomicFileTest, leaves_a_complete_or_temporary_file_wherever_it_is_killed) {
  struct Case {
    char const* point;
    bool temporary;
    bool final_name;
  };
  constexpr std::array cases{
      Case{"platform.atomic_file.created", true, false},  Case{"platform.atomic_file.reserved", true, false},
      Case{"platform.atomic_file.written", true, false},  Case{"platform.atomic_file.synced", true, false},
      Case{"platform.atomic_file.closed", true, false},   Case{"platform.atomic_file.linked", true, true},
      Case{"platform.atomic_file.unlinked", false, true}, Case{"platform.atomic_file.committed", false, true}};
  for (auto const& expected : cases) {
    test::TemporaryDirectory const root;
    pid_t const child = ::fork();
    if (child == 0) {
      arm_crash_point(expected.point, 1);
      auto const directory = Directory::open(root.path(), "test");
      AtomicFile file(directory, "file", content.size(), "test");
      file.write(bytes_of(content));
      file.commit();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << expected.point;
    auto const left = Directory::open(root.path(), "test").names("test");
    auto const temporaries =
        std::count_if(left.begin(), left.end(), [](auto const& n) { return final_name_of_temporary(n) == "file"; });
    EXPECT_EQ(temporaries, expected.temporary ? 1 : 0) << expected.point;
    EXPECT_EQ(std::count(left.begin(), left.end(), "file"), expected.final_name ? 1 : 0) << expected.point;
    if (expected.final_name) {
      std::ifstream in(root.path() / "file", std::ios::binary);
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), content) << expected.point;
    }
  }
}

TEST(FinalNameOfTemporary, is_empty_for_names_of_others) {
  EXPECT_EQ(final_name_of_temporary(".a.0123456789abcdef.crossrank.tmp"), "a");
  for (auto const* name : {"", ".tmp", "a.0123456789abcdef.crossrank.tmp", ".0123456789abcdef.crossrank.tmp",
                           "..0123456789abcdef.crossrank.tmp", ".a.0123456789abcdeF.crossrank.tmp",
                           ".a.0123456789abcde.crossrank.tmp", ".a.0123456789abcdef.crossrank.tmq"}) {
    EXPECT_EQ(final_name_of_temporary(name), "") << name;
  }
}

}  // namespace
}  // namespace crossrank::platform
