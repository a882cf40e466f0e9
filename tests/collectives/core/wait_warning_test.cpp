#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/statistics.hpp>

#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/virtual_clock.hpp"

namespace crossrank::test {
namespace {

using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;

using Fields = std::map<std::string, std::string>;

/// Collects what people are told of long waits.
class WaitWarning : public testing::Test {
 protected:
  WaitWarning() {
    set_log_sink([this](LogEvent const& event) {
      if (event.level != LogLevel::warning || event.message != "a wait is long") return;
      Fields fields;
      for (auto const& [key, value] : event.fields) fields.emplace(key, value);
      std::lock_guard const lock(mutex_);
      heard_.push_back(std::move(fields));
    });
  }
  ~WaitWarning() override { set_log_sink({}); }

  [[nodiscard]] std::vector<Fields> heard() {
    std::lock_guard const lock(mutex_);
    return heard_;
  }
  [[nodiscard]] std::vector<std::string> times() {
    std::vector<std::string> all;
    for (auto& fields : heard()) all.push_back(fields["without progress for"]);
    return all;
  }

  /// Of two ranks, rank 1 stays away from the second barrier until rank 0 has given up.
  void let_rank_0_wait_in_vain(Collective const& world) {
    world.barrier();
    if (world.rank() == 1) {
      while (!over_) std::this_thread::yield();
      return;
    }
    clock_.start();
    EXPECT_THROW(world.barrier(), TimeoutError);
    over_ = true;
  }

  VirtualClock clock_{};

 private:
  std::atomic<bool> over_{false};
  std::mutex mutex_{};
  std::vector<Fields> heard_{};
};

/// Once all have met, only rank 0 goes on to the next barrier: whoever sleeps is rank 0.
void wait_until_rank_0_sleeps(std::atomic<int> const& met, int ranks) {
  while (met != ranks) std::this_thread::yield();
  for (auto const before = statistics().futex_waits; statistics().futex_waits == before;) std::this_thread::yield();
}

/// A rank that runs the caller's code keeps three others waiting: one of them says so, after a minute and then every
/// ten.
TEST_F(WaitWarning, comes_after_a_minute_and_then_every_ten) {
  platform::ScopedSystem const installed(clock_);
  std::atomic<int> met{0};
  auto const work = [&](Collective const& world) {
    world.barrier();
    ++met;
    if (world.rank() != 0) wait_until_rank_0_sleeps(met, world.world_size());
    if (world.rank() == 2) {
      world.transport()->enter_user_code(1);
      clock_.start();
      while (heard().size() < 3) std::this_thread::yield();
      world.transport()->enter_user_code(-1);
    }
    world.barrier();
  };
  run_thread_ranks(4, work, {.timeout = minutes(5)});
  EXPECT_THAT(times(), ElementsAre("60 s", "660 s", "1260 s"));
  auto first = heard().front();
  EXPECT_EQ(first["operation"], "barrier");
  EXPECT_EQ(first["group"], "world");
  EXPECT_EQ(first["waits for rank"], "2");
  EXPECT_EQ(first["gives up after"], "21600 s");
  EXPECT_THAT(first["state"], HasSubstr("in the caller's code"));
}

/// Where the limit is short, half of it counts: the warning comes before the error.
TEST_F(WaitWarning, comes_before_the_error) {
  platform::ScopedSystem const installed(clock_);
  run_thread_ranks(2, [this](Collective const& world) { let_rank_0_wait_in_vain(world); },
                   {.timeout = std::chrono::seconds(80)});
  EXPECT_THAT(times(), ElementsAre("40 s"));
}

TEST_F(WaitWarning, comes_across_nodes_too) {
  platform::ScopedSystem const installed(clock_);
  run_message_ranks(2, [this](Collective const& world, MemoryHub&) { let_rank_0_wait_in_vain(world); },
                    {.timeout = minutes(15)});
  // The first answer of the other rank, which takes its time, may count as progress: then the minutes start anew.
  auto const all = times();
  EXPECT_EQ(all.front(), "60 s");
  EXPECT_EQ(all.back(), "660 s");
  EXPECT_EQ(heard().front()["waits for rank"], "1");
}

}  // namespace
}  // namespace crossrank::test
