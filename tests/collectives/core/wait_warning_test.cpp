#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/spi/transport.hpp>

#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/virtual_clock.hpp"

namespace crossrank::test {
namespace {

using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;

using Fields = std::map<std::string, std::string>;

/// A virtual clock that knows which ranks have slept in a wait since they asked to be observed. It may be moved by one
/// of them alone: others would move it past the time of a warning before the rank that warns looks at it.
class ObservingClock : public VirtualClock {
 public:
  /// Observes the calling thread, which is `rank`, until the guard is dropped.
  class Observed {
   public:
    explicit Observed(int rank) noexcept { observed_rank_ = rank; }
    ~Observed() { observed_rank_ = -1; }
    Observed(Observed const&) = delete;
    Observed& operator=(Observed const&) = delete;
  };

  [[nodiscard]] bool has_slept(int rank) const noexcept { return (slept_ >> rank & 1) != 0; }

  void let_only(int rank) noexcept { mover_ = rank; }

  void sleep(std::chrono::nanoseconds duration) override {
    if (may_move()) return VirtualClock::sleep(duration);
    platform::System::sleep(duration);
  }
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
    if (observed_rank_ >= 0) slept_ |= 1u << observed_rank_;
    if (may_move()) return VirtualClock::futex_wait(word, expected, limit);
    return platform::System::futex_wait(word, expected, limit);
  }

 private:
  [[nodiscard]] bool may_move() const noexcept { return mover_ < 0 || observed_rank_ == mover_; }

  static thread_local int observed_rank_;
  std::atomic<unsigned> slept_{0};
  std::atomic<int> mover_{-1};
};

thread_local int ObservingClock::observed_rank_ = -1;

/// Yields until `done` returns true. Throws after `step_timeout` of real time.
template <class Done>
void yield_until(char const* what, Done&& done) {
  auto const start = std::chrono::steady_clock::now();
  while (!done()) {
    if (std::chrono::steady_clock::now() - start > step_timeout)
      throw std::runtime_error(std::string("timed out waiting until ") + what);
    std::this_thread::yield();
  }
}

/// Collects the warnings about long waits.
class WaitWarning : public testing::Test {
 protected:
  WaitWarning() {
    set_log_sink([this](LogEvent const& event) {
      if (event.level != LogLevel::warning || event.message != "still waiting") return;
      Fields fields;
      for (auto const& [key, value] : event.fields) fields.emplace(key, value);
      std::lock_guard const lock(mutex_);
      heard_.push_back(std::move(fields));
      if (heard_.size() == hold_after_) clock_.hold();
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

  /// Stops the clock with the warning of this number, so that no later one can come.
  void hold_after(std::size_t warnings) {
    std::lock_guard const lock(mutex_);
    hold_after_ = warnings;
  }

  /// Rank 1 of two ranks stays away from the second barrier until rank 0 has given up.
  void let_rank_0_wait_in_vain(Collective const& world) {
    world.barrier();
    if (world.rank() == 1) {
      yield_until("rank 0 has given up", [this] { return over_.load(); });
      return;
    }
    clock_.start();
    EXPECT_THROW(world.barrier(), TimeoutError);
    over_ = true;
  }

  ObservingClock clock_{};

 private:
  std::atomic<bool> over_{false};
  std::mutex mutex_{};
  std::vector<Fields> heard_{};
  std::size_t hold_after_ = 0;
};

/// One rank runs the caller's code while three others wait for it. The lowest of the three warns after a minute, then
/// every ten minutes.
///
/// The clock starts only once all three sleep in the barrier: a rank that is not there yet would run into the timeout
/// of five minutes, which pass in milliseconds. It stops with the third warning, as rank 2 may be slow to notice that.
/// Only the rank that warns moves it.
TEST_F(WaitWarning, comes_after_a_minute_and_then_every_ten) {
  platform::ScopedSystem const installed(clock_);
  hold_after(3);
  clock_.let_only(0);
  auto const work = [&](Collective const& world) {
    world.barrier();
    if (world.rank() == 2) {
      yield_until("all others sleep in the barrier",
                  [&] { return clock_.has_slept(0) && clock_.has_slept(1) && clock_.has_slept(3); });
      world.transport()->mark_user_code(spi::UserCode::begins);
      clock_.start();
      yield_until("three warnings have come", [&] { return heard().size() >= 3; });
      world.transport()->mark_user_code(spi::UserCode::ends);
      world.barrier();
      return;
    }
    // Rank 0 sleeps first: the lowest rank that sleeps is the one that warns.
    if (world.rank() != 0) yield_until("rank 0 sleeps", [&] { return clock_.has_slept(0); });
    ObservingClock::Observed const observed(world.rank());
    world.barrier();
  };
  run_thread_ranks(4, work, {.timeout = minutes(5)});
  ASSERT_THAT(times(), ElementsAre("60 s", "660 s", "1260 s"));
  auto first = heard().front();
  EXPECT_EQ(first["operation"], "barrier");
  EXPECT_EQ(first["group"], "world");
  EXPECT_EQ(first["waits for rank"], "2");
  EXPECT_EQ(first["gives up after"], "21600 s");
  EXPECT_THAT(first["state"], HasSubstr("in the caller's code"));
}

/// A limit of less than two minutes is warned of at its half, so before the error.
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
  // The other rank's first answer may come late and count as progress, which restarts the count.
  auto const all = times();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front(), "60 s");
  EXPECT_EQ(all.back(), "660 s");
  EXPECT_EQ(heard().front()["waits for rank"], "1");
}

}  // namespace
}  // namespace crossrank::test
