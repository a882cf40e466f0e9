#include "lib/core/log.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/tensor.hpp>

namespace crossrank {
namespace {

/// Takes the sink away at the end of a test.
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

TEST_F(LogSinkTest, drops_events_without_a_sink_and_what_a_sink_throws) {
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

TEST_F(LogSinkTest, hears_of_a_deleter_that_throws) {
  std::string heard;
  set_log_sink([&](LogEvent const& event) { heard = std::string(event.fields.front().value); });
  int memory = 0;
  (void)Tensor::from_blob(&memory, {1}, Dtype::i32, [](void*) { throw std::runtime_error("cannot free"); });
  EXPECT_EQ(heard, "cannot free");
}

}  // namespace
}  // namespace crossrank
