#include "workspace/nfs/retrying_read.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/guarded_call.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank::workspace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Call;
using test::expect_same;
using test::sample_state;
using test::thrown;
using ::testing::HasSubstr;

class RetryingReadTest : public ::testing::Test {
 protected:
  RetryingReadTest() {
    os_.fake_clock();
    auto const state = sample_state(8);
    published_ = writer_.write_for_range(state.config, state.weights, workspace::FileStateStore::AtEnd::withdrawn);
    os_.forget_uses();
  }
  [[nodiscard]] fs::path file() const { return root_.path() / published_.file.name(); }
  [[nodiscard]] RankState read(ReadRetryPolicy const& retry_policy = {}) const {
    return read_published(root_.path(), published_, retry_policy);
  }
  /// Hides the file until the reader has slept `sleeps` times.
  void hide_for(int sleeps) {
    fs::rename(file(), root_.path() / "hidden");
    os_.on_sleep = [this, sleeps] {
      if (os_.sleeps() == sleeps) fs::rename(root_.path() / "hidden", file());
    };
  }

  test::TemporaryDirectory root_{};
  test::FaultySystem os_{};
  platform::ScopedSystem scope_{os_};
  std::shared_ptr<FileStateStore> const store_ = FileStateStore::open_for_rank(root_.path(), {.rank = 4});
  FileStateStore& writer_ = *store_;
  PublishedFile published_{};
};

TEST_F(RetryingReadTest, reads_a_visible_file_without_waiting) {
  expect_same(read(), sample_state(8));
  EXPECT_EQ(os_.sleeps(), 0);
}

TEST_F(RetryingReadTest, waits_until_the_file_is_visible) {
  hide_for(40);
  expect_same(read(), sample_state(8));
  EXPECT_GE(os_.sleeps(), 40);
}

TEST_F(RetryingReadTest, reopens_the_directory_for_each_attempt) {
  hide_for(3);
  int directory_opens = 0;
  os_.on_name = [&](Call call, std::string const& name) {
    directory_opens += call == Call::openat && name == root_.path().string() ? 1 : 0;
  };
  (void)read();
  EXPECT_EQ(directory_opens, 4) << "three failed attempts and a successful one";
}

TEST_F(RetryingReadTest, gives_up_after_75_seconds_and_reports_what_it_found) {
  fs::remove(file());
  auto const before = os_.now();
  auto const error = thrown<IoError>([&] { (void)read(); });
  EXPECT_GE(os_.now() - before, 75s);
  EXPECT_LE(os_.now() - before, 77s);
  EXPECT_EQ(error.info().resource, file().string());
  EXPECT_THAT(error.info().expected, HasSubstr(std::to_string(published_.bytes)));
  EXPECT_EQ(error.info().got, "no file of that name");
  EXPECT_THAT(error.info().message, HasSubstr("rank 4"));
  EXPECT_THAT(error.report(), HasSubstr("mount on this node: "));
  EXPECT_FALSE(error.info().hint.empty());
}

TEST_F(RetryingReadTest, waits_while_the_size_is_old) {
  fs::copy_file(file(), root_.path() / "whole");
  fs::resize_file(file(), published_.bytes - 10);
  os_.on_sleep = [this] {
    if (os_.sleeps() == 5) fs::rename(root_.path() / "whole", file());
  };
  expect_same(read(), sample_state(8));
}

TEST_F(RetryingReadTest, reports_the_size_that_it_found) {
  fs::resize_file(file(), published_.bytes - 10);
  EXPECT_EQ(thrown<IoError>([&] { (void)read({.limit = 2s}); }).info().got,
            std::to_string(published_.bytes - 10) + " bytes");
}

TEST_F(RetryingReadTest, never_reads_another_generation) {
  auto const state = sample_state(8);
  auto const later = writer_.write_for_range(state.config, state.weights, workspace::FileStateStore::AtEnd::withdrawn);
  published_.digest = later.digest;
  ASSERT_EQ(later.bytes, published_.bytes);
  auto const error = thrown<IoError>([&] { (void)read({.limit = 2s}); });
  EXPECT_NE(error.info().expected, error.info().got);
}

TEST_F(RetryingReadTest, reports_a_damaged_file_at_once) {
  {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-1, std::ios::end);
    bytes.put('\x55');
  }
  EXPECT_THROW((void)read(), FormatError);
  EXPECT_EQ(os_.sleeps(), 0);
}

TEST_F(RetryingReadTest, survives_two_temporary_failures_of_any_call) {
  for (auto const call : {Call::openat, Call::fstat, Call::pread}) {
    for (int const error : {ESTALE, EIO}) {
      test::FaultySystem os;
      os.fake_clock();
      os.fail(call, 1, error, 2);
      platform::ScopedSystem const scope(os);
      expect_same(read(), sample_state(8));
      EXPECT_GT(os.sleeps(), 0);
    }
  }
}

TEST_F(RetryingReadTest, gives_up_on_persistent_failures) {
  for (auto const call : {Call::openat, Call::fstat, Call::pread}) {
    for (int const error : {ESTALE, EIO, EACCES, ENOMEM}) {
      test::FaultySystem os;
      os.fake_clock();
      os.fail_always(call, error);
      platform::ScopedSystem const scope(os);
      EXPECT_EQ(thrown<IoError>([&] { (void)read(); }).system_errno(), error);
      EXPECT_LE(os.sleeps(), 3) << "bounded";
    }
  }
}

TEST_F(RetryingReadTest, survives_short_reads_and_interruptions) {
  os_.limit_transfers(7);
  os_.fail(Call::pread, 2, EINTR, 5);
  expect_same(read(), sample_state(8));
}

TEST_F(RetryingReadTest, lets_the_caller_give_up_between_attempts) {
  fs::remove(file());
  int slices = 0;
  auto const stop = [&slices] {
    if (++slices == 10) throw CancelledError(ErrorInfo{.operation = "test"});
  };
  EXPECT_THROW((void)read({.between = stop}), CancelledError);
  EXPECT_EQ(slices, 10);
}

/// Injects every errno at the first, second and last use of each call on the reading path. The result is the published
/// state or an error, never another state.
TEST_F(RetryingReadTest, returns_only_the_published_state_whatever_call_fails) {
  constexpr std::array errors{EIO, ESTALE, EINTR, EAGAIN, EACCES, ENOENT, ENOMEM};
  int failures = 0;
  (void)read();
  for (auto const call : {Call::openat, Call::fstat, Call::pread, Call::close}) {
    int const last = os_.uses(call);
    ASSERT_GT(last, 0);
    for (int const nth : {1, 2, last}) {
      for (int const error : errors) {
        test::FaultySystem os;
        os.fake_clock();
        os.fail(call, nth, error);
        platform::ScopedSystem const scope(os);
        try {
          expect_same(read(), sample_state(8));
        } catch (IoError const& failed) {
          EXPECT_EQ(failed.system_errno(), error) << test::call_names[as_index(call)] << " use " << nth;
          ++failures;
        }
      }
    }
  }
  EXPECT_GT(failures, 0);
}

/// A server that is gone: opening the directory blocks until the server is back.
struct GoneServer : platform::System {
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    std::unique_lock lock(mutex);
    moved.wait(lock, [this] { return !gone; });
    return System::openat(directory, path, flags, mode);
  }
  void come_back() {
    std::lock_guard const lock(mutex);
    gone = false;
    moved.notify_all();
  }
  std::mutex mutex;
  std::condition_variable moved;
  bool gone = false;
};

class BlockedRead : public ::testing::Test {
 protected:
  BlockedRead() { os_.gone = true; }

  /// Waits until the abandoned calls have returned.
  void bring_server_back() {
    os_.come_back();
    auto const until = std::chrono::steady_clock::now() + 20s;
    while (platform::abandoned_calls() != 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(platform::abandoned_calls(), 0U);
  }

  test::TemporaryDirectory root_{};
  GoneServer os_{};
  platform::ScopedSystem scope_{os_};
  RankState state_ = sample_state(8);
  std::shared_ptr<FileStateStore> store_ = FileStateStore::open_for_rank(root_.path(), {.rank = 4});
  PublishedFile published_ =
      store_->write_for_range(state_.config, state_.weights, workspace::FileStateStore::AtEnd::withdrawn);
};

TEST_F(BlockedRead, ends_with_an_error_in_time_and_tracks_the_abandoned_call) {
  auto const started = std::chrono::steady_clock::now();
  try {
    (void)read_published(root_.path(), published_, {.attempt_timeout = 200ms});
    ADD_FAILURE() << "no error";
  } catch (IoError const& error) {
    EXPECT_EQ(error.system_errno(), ETIMEDOUT) << error.what();
    EXPECT_THAT(error.info().resource, HasSubstr(published_.file.name()));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, 20s);
  EXPECT_EQ(platform::abandoned_calls(), 1U);
  bring_server_back();
  expect_same(read_published(root_.path(), published_, {.attempt_timeout = 20s}), state_);
}

TEST_F(BlockedRead, can_be_given_up) {
  auto const cancel = [] { throw CancelledError(ErrorInfo{.message = "enough"}); };
  EXPECT_THROW((void)read_published(root_.path(), published_, {.between = cancel, .attempt_timeout = 60s}),
               CancelledError);
  bring_server_back();
}

}  // namespace
}  // namespace crossrank::workspace
