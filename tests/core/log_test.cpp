#include "lib/core/log.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <crossrank/tensor.hpp>

namespace crossrank {
namespace {

/// Removes the sink at the end of a test.
class LogSinkTest : public testing::Test {
 protected:
  ~LogSinkTest() override { set_log_sink({}); }
};

TEST_F(LogSinkTest, gets_level_message_and_fields) {
  std::vector<std::string> seen;
  set_log_sink([&](LogEvent const& event) {
    seen.push_back(std::string(to_string(event.level)) + " " + std::string(event.message));
    for (auto const& field : event.fields) seen.push_back(std::string(field.key) + "=" + std::string(field.value));
  });
  log_event(LogLevel::warning, "arena nearly full", {{"used", "9"}, {"cap", "10"}});
  EXPECT_EQ(seen, (std::vector<std::string>{"warning arena nearly full", "used=9", "cap=10"}));
}

TEST_F(LogSinkTest, drops_events_without_a_sink_and_exceptions_of_a_sink) {
  int calls = 0;
  set_log_sink([&](LogEvent const&) {
    ++calls;
    throw std::runtime_error("full");
  });
  log_event(LogLevel::error, "once");
  set_log_sink({});
  log_event(LogLevel::error, "twice");
  EXPECT_EQ(calls, 1);
}

/// Returns the output to standard error while `work` runs, with this threshold.
std::string printed_at(LogThreshold threshold, std::function<void()> const& work) {
  set_log_process({.threshold = threshold, .rank = 3});
  testing::internal::CaptureStderr();
  work();
  auto text = testing::internal::GetCapturedStderr();
  set_log_process({});
  return text;
}

TEST_F(LogSinkTest, prints_warnings_without_a_sink) {
  auto const text = printed_at(default_threshold, [] {
    log_event(LogLevel::info, "unseen");
    log_event(LogLevel::warning, "still waiting", {{"group", "world"}, {"rank", "1\x1b[2J\n"}});
    log_event(LogLevel::error, "and fails");
  });
  EXPECT_EQ(text,
            "crossrank: rank 3: warning: still waiting (group world, rank 1\\x1b[2J\\n)\n"
            "crossrank: rank 3: error: and fails\n");
}

TEST_F(LogSinkTest, prints_events_from_the_threshold_on) {
  auto const all = [] {
    for (auto const level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error})
      log_event(level, "event");
  };
  EXPECT_EQ(printed_at(LogThreshold::off, all), "");
  EXPECT_EQ(printed_at(LogThreshold::error, all), "crossrank: rank 3: error: event\n");
  auto const text = printed_at(LogThreshold::debug, all);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

TEST_F(LogSinkTest, prints_nothing_with_a_sink) {
  set_log_sink([](LogEvent const&) {});
  EXPECT_EQ(printed_at(LogThreshold::debug, [] { log_event(LogLevel::error, "event"); }), "");
}

/// The event is dropped, because this may be the thread that sends the heartbeat.
TEST_F(LogSinkTest, does_not_wait_for_a_full_pipe) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  int const before = ::dup(STDERR_FILENO);
  ASSERT_GE(::dup2(ends[1], STDERR_FILENO), 0);
  std::string const line(3000, 'x');
  for (int i = 0; i < 40; ++i) log_event(LogLevel::error, line);
  ::dup2(before, STDERR_FILENO);
  for (int const fd : {ends[0], ends[1], before}) ::close(fd);
}

/// SIGPIPE would end the test.
TEST_F(LogSinkTest, drops_events_when_nobody_reads_them) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  int const before = ::dup(STDERR_FILENO);
  ASSERT_GE(::dup2(ends[1], STDERR_FILENO), 0);
  ::close(ends[0]);
  log_event(LogLevel::error, "event");
  ::dup2(before, STDERR_FILENO);
  for (int const fd : {ends[1], before}) ::close(fd);
}

TEST_F(LogSinkTest, gets_an_event_when_a_deleter_throws) {
  std::string heard;
  set_log_sink([&](LogEvent const& event) { heard = std::string(event.fields.front().value); });
  int memory = 0;
  (void)Tensor::from_blob(&memory, {1}, Dtype::i32, [](void*) { throw std::runtime_error("cannot free"); });
  EXPECT_EQ(heard, "cannot free");
}

}  // namespace
}  // namespace crossrank
