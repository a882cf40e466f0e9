#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "tests/orders/order_explorer.hpp"
#include "tests/orders/ring_program.hpp"

/// Publishing, reading, sleeping and waking of the ring, in every order that C++ allows.
namespace crossrank::test::orders {
namespace {

Findings explore_ring(RingPlan const& plan) {
  return explore([&] { return threads_of(plan); });
}

void expect_sound(RingPlan const& plan) {
  auto const findings = explore_ring(plan);
  EXPECT_EQ(findings.failure, "");
  EXPECT_TRUE(findings.complete) << findings.executions << " executions";
}

TEST(RingOrders, hold_with_one_chunk_that_is_overwritten) { expect_sound({.messages = 2, .closes = false}); }

TEST(RingOrders, hold_with_two_chunks) { expect_sound({.chunks = 2, .messages = 3, .closes = false}); }

TEST(RingOrders, hold_with_two_readers) {
  expect_sound({.readers = 2, .messages = 1, .closes = false});
  expect_sound({.readers = 2, .messages = 0});
}

TEST(RingOrders, hold_when_the_writer_closes) { expect_sound({.messages = 1}); }

TEST(RingOrders, hold_when_a_reader_is_cancelled) {
  expect_sound({.messages = 0, .cancels = true});
  expect_sound({.writes = false, .cancels = true});
}

struct Broken {
  char const* name;
  RingPlan plan;
  char const* failure;  ///< beginning of the message
};

std::ostream& operator<<(std::ostream& out, Broken const& broken) { return out << broken.name; }

class BrokenRing : public testing::TestWithParam<Broken> {};

TEST_P(BrokenRing, is_found) {
  auto const findings = explore_ring(GetParam().plan);
  EXPECT_EQ(findings.failure.rfind(GetParam().failure, 0), 0U) << "found: " << findings.failure;
  EXPECT_NE(findings.failure, "");
}

constexpr char const* forever = "a thread sleeps forever";
constexpr auto acquire_release = Weaken::to_acquire_release;
constexpr auto relaxed = Weaken::to_relaxed;

Broken const weaker_orders[] = {
    {"number_acquire_release", {.number = acquire_release}, forever},
    {"number_relaxed", {.number = relaxed}, "a race"},
    {"cursor_acquire_release", {.closes = false, .cursor = acquire_release}, forever},
    {"cursor_relaxed", {.closes = false, .cursor = relaxed}, "a race"},
    {"doorbell_acquire_release", {.doorbell = acquire_release}, forever},
    {"state_acquire_release", {.messages = 1, .state = acquire_release}, forever},
    {"state_relaxed", {.messages = 1, .state = relaxed}, ""},
    {"cancelled_relaxed", {.writes = false, .cancels = true, .cancelled = relaxed}, forever},
};

Broken const wrong_steps[] = {
    {"polls_before_it_announces", {.polls_before_it_announces = true}, forever},
    {"rings_before_it_publishes", {.rings_before_it_publishes = true}, forever},
    {"reader_does_not_ring", {.reader_does_not_ring = true}, forever},
    {"takes_before_it_reads", {.takes_before_it_reads = true}, "a race"},
};

std::string name_of(testing::TestParamInfo<Broken> const& each) { return each.param.name; }

INSTANTIATE_TEST_SUITE_P(WeakerOrders, BrokenRing, testing::ValuesIn(weaker_orders), name_of);
INSTANTIATE_TEST_SUITE_P(WrongSteps, BrokenRing, testing::ValuesIn(wrong_steps), name_of);

}  // namespace
}  // namespace crossrank::test::orders
