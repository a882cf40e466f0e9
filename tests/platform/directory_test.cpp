#include "lib/platform/files/directory.hpp"

#include <fstream>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::platform {
namespace {

namespace fs = std::filesystem;
using test::thrown;

class DirectoryTest : public ::testing::Test {
 protected:
  void put(std::string const& name, std::string const& text = "x", mode_t mode = 0600) {
    std::ofstream(root() / name) << text;
    ::chmod((root() / name).c_str(), mode);
  }
  [[nodiscard]] fs::path const& root() const { return root_.path(); }
  [[nodiscard]] Directory open() const { return Directory::open(root(), "test"); }

  test::TemporaryDirectory root_{};
  test::FaultySystem os_{};
  ScopedSystem scope_{os_};
};

TEST_F(DirectoryTest, is_made_with_its_parents_for_its_owner_only) {
  auto const path = root() / "a" / "b" / "c";
  auto const directory = Directory::open(path, "test", IfMissing::create);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_EQ(directory.path(), path);
}

TEST_F(DirectoryTest, accepts_a_trailing_slash) {
  auto const directory = Directory::open((root() / "a" / "").string(), "test", IfMissing::create);
  EXPECT_TRUE(fs::is_directory(root() / "a"));
  EXPECT_EQ(directory.path(), root() / "a");
}

TEST_F(DirectoryTest, is_made_by_many_at_once_without_a_race) {
  auto const path = root() / "a" / "b" / "c" / "d";
  std::vector<std::thread> threads;
  std::atomic<int> opened{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { opened += Directory::open(path, "test", IfMissing::create).fd() >= 0 ? 1 : 0; });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(opened, 16);
}

TEST_F(DirectoryTest, may_be_a_symbolic_link_of_the_user) {
  fs::create_directory(root() / "real");
  fs::create_directory_symlink(root() / "real", root() / "link");
  put("real/file");
  EXPECT_THAT(Directory::open(root() / "link", "test").names("test"), ::testing::ElementsAre("file"));
}

/// Two users. One has made a link to a directory of the other.
class ForeignLink : public DirectoryTest {
 protected:
  static constexpr uid_t alice = 54'321;
  static constexpr uid_t bob = 54'322;

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
    ::chmod(root().c_str(), 0755);
    for (auto const& [name, owner] : {std::pair{"alice", alice}, std::pair{"bob", bob}}) {
      fs::create_directories(root() / name / "data");
      ASSERT_EQ(::chown((root() / name).c_str(), owner, owner), 0);
      ASSERT_EQ(::chown((root() / name / "data").c_str(), owner, owner), 0);
    }
  }
  void link(std::string const& from, fs::path const& to, uid_t owner) const {
    fs::create_symlink(to, root() / from);
    ASSERT_EQ(::lchown((root() / from).c_str(), owner, owner), 0);
  }
  [[nodiscard]] std::string refusal(fs::path const& path, IfMissing missing = IfMissing::refuse) const {
    return thrown<IoError>([&] { (void)Directory::open(path, "test", missing); }).what();
  }
};

TEST_F(ForeignLink, into_the_directory_of_another_user_is_not_followed) {
  link("alice/link", root() / "bob", alice);
  link("alice/relative", "../bob/data", alice);
  link("alice/chain", "link/data", 0);
  for (auto const* path : {"alice/link", "alice/link/data", "alice/relative", "alice/chain", "alice/link/../bob"})
    EXPECT_THAT(refusal(root() / path), ::testing::HasSubstr("link of user 54321")) << path;
}

TEST_F(ForeignLink, is_not_followed_to_make_a_directory) {
  link("alice/link", root() / "bob", alice);
  EXPECT_THAT(refusal(root() / "alice/link/new/below", IfMissing::create), ::testing::HasSubstr("link of user 54321"));
  EXPECT_FALSE(fs::exists(root() / "bob/new"));
}

TEST_F(ForeignLink, within_its_owners_directories_and_of_root_is_followed) {
  link("alice/link", root() / "alice/data", alice);
  link("by_root", root() / "bob", 0);
  put("bob/data/file");
  EXPECT_NO_THROW((void)Directory::open(root() / "alice/link", "test"));
  EXPECT_THAT(Directory::open(root() / "by_root/data", "test").names("test"), ::testing::ElementsAre("file"));
}

TEST_F(DirectoryTest, may_be_named_through_a_descriptor) {
  fs::create_directory(root() / "real");
  auto const real = Directory::open(root() / "real", "test");
  auto const path = fs::path("/proc/self/fd") / std::to_string(real.fd());
  EXPECT_NO_THROW((void)Directory::open(path, "test"));
}

TEST_F(DirectoryTest, refuses_a_circle_of_links) {
  fs::create_symlink("b", root() / "a");
  fs::create_symlink("a", root() / "b");
  EXPECT_EQ(
      thrown<IoError>([&] { (void)Directory::open(root() / "a" / "c", "test", IfMissing::create); }).system_errno(),
      ELOOP);
}

TEST_F(DirectoryTest, names_path_and_errno_when_it_cannot_be_opened) {
  auto const missing = thrown<IoError>([&] { (void)Directory::open(root() / "none", "test"); });
  EXPECT_EQ(missing.system_errno(), ENOENT);
  EXPECT_EQ(missing.info().resource, (root() / "none").string());
  put("file");
  EXPECT_EQ(thrown<IoError>([&] { (void)Directory::open(root() / "file", "test"); }).system_errno(), ENOTDIR);
}

TEST_F(DirectoryTest, reports_why_it_could_not_be_created) {
  os_.fail_always(test::Call::mkdirat, EROFS);
  EXPECT_EQ(
      thrown<IoError>([&] { (void)Directory::open(root() / "a" / "b", "test", IfMissing::create); }).system_errno(),
      EROFS);
}

TEST_F(DirectoryTest, refuses_a_directory_that_others_can_write_to) {
  ::chmod(root().c_str(), 0777);
  EXPECT_THAT(thrown<IoError>([&] { (void)open(); }).info().got, ::testing::HasSubstr("0777"));
  ::chmod(root().c_str(), 01777);
  EXPECT_NO_THROW((void)open());
}

TEST_F(DirectoryTest, may_be_writable_by_others_on_request) {
  ::chmod(root().c_str(), 0777);
  os_.on_fstat = [](struct stat& status) { status.st_uid = ::geteuid() + 4711; };
  EXPECT_NO_THROW((void)Directory::open(root(), "test", IfMissing::refuse, OtherWriters::accept));
}

TEST_F(DirectoryTest, lists_again_after_a_change) {
  auto const directory = open();
  EXPECT_TRUE(directory.names("test").empty());
  put("b");
  put("a");
  EXPECT_THAT(directory.names("test"), ::testing::ElementsAre("a", "b"));
}

TEST_F(DirectoryTest, distinguishes_a_missing_file_from_an_unreadable_one) {
  put("file");
  auto const directory = open();
  EXPECT_FALSE(directory.open_file("none", "test").has_value());
  os_.forget_uses();
  os_.fail(test::Call::openat, 1, ESTALE);
  EXPECT_EQ(thrown<IoError>([&] { (void)directory.open_file("file", "test"); }).system_errno(), ESTALE);
  EXPECT_TRUE(directory.open_file("file", "test").has_value());
}

TEST_F(DirectoryTest, does_not_follow_a_link_inside) {
  put("file");
  fs::create_symlink(root() / "file", root() / "link");
  EXPECT_THAT(thrown<IoError>([&] { (void)open().open_file("link", "test"); }).info().got,
              ::testing::HasSubstr("symbolic link"));
}

TEST_F(DirectoryTest, refuses_a_pipe_without_waiting_for_its_writer) {
  ASSERT_EQ(::mkfifo((root() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(thrown<IoError>([&] { (void)open().open_file("pipe", "test"); }).info().got,
              ::testing::HasSubstr("pipe"));
}

TEST_F(DirectoryTest, refuses_files_that_others_can_write) {
  put("group", "x", 0620);
  put("world", "x", 0602);
  put("readable", "x", 0644);
  auto const directory = open();
  EXPECT_THAT(thrown<IoError>([&] { (void)directory.open_file("group", "test"); }).info().got,
              ::testing::HasSubstr("0620"));
  EXPECT_THAT(thrown<IoError>([&] { (void)directory.open_file("world", "test"); }).info().got,
              ::testing::HasSubstr("0602"));
  EXPECT_TRUE(directory.open_file("readable", "test").has_value());
}

TEST_F(DirectoryTest, refuses_files_of_another_user) {
  put("file");
  auto const directory = open();
  os_.on_fstat = [](struct stat& status) {
    if (S_ISREG(status.st_mode)) status.st_uid = ::geteuid() + 4711;
  };
  auto const error = thrown<IoError>([&] { (void)directory.open_file("file", "test"); });
  EXPECT_THAT(error.info().got, ::testing::HasSubstr(std::to_string(::geteuid() + 4711)));
  EXPECT_EQ(error.info().resource, (root() / "file").string());
}

TEST_F(DirectoryTest, removes_a_file_once) {
  put("file");
  auto const directory = open();
  EXPECT_TRUE(directory.remove("file", "test"));
  EXPECT_FALSE(directory.remove("file", "test"));
}

TEST_F(DirectoryTest, tolerates_file_systems_that_cannot_sync_a_directory) {
  auto const directory = open();
  os_.fail(test::Call::fsync, 1, EINVAL);
  EXPECT_NO_THROW(directory.sync("test"));
  os_.fail(test::Call::fsync, 2, EIO);
  EXPECT_EQ(thrown<IoError>([&] { directory.sync("test"); }).system_errno(), EIO);
}

}  // namespace
}  // namespace crossrank::platform
