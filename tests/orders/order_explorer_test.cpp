#include "tests/orders/order_explorer.hpp"

#include <memory>
#include <set>
#include <utility>

#include <gtest/gtest.h>

/// Tests the explorer itself: it finds exactly the outcomes of small programs that C++ allows.
namespace crossrank::test::orders {
namespace {

using Outcomes = std::set<std::pair<std::uint64_t, std::uint64_t>>;

struct Pair {
  Word x{};
  Word y{};
  Plain data{};
};

/// Returns what two threads may see if each stores to its own word and loads the other's.
Outcomes store_buffering(std::memory_order store, std::memory_order load) {
  Outcomes outcomes;
  auto const findings = explore([&] {
    auto const words = std::make_shared<Pair>();
    auto const seen = std::make_shared<std::pair<std::uint64_t, std::uint64_t>>(9, 9);
    auto const note = [&outcomes, seen] {
      if (seen->first != 9 && seen->second != 9) outcomes.insert(*seen);
    };
    return std::vector<Body>{[=] {
                               words->x.exchange(1, store);
                               seen->first = words->y.load(load);
                               note();
                             },
                             [=] {
                               words->y.exchange(1, store);
                               seen->second = words->x.load(load);
                               note();
                             }};
  });
  EXPECT_TRUE(findings.complete);
  EXPECT_EQ(findings.failure, "");
  return outcomes;
}

TEST(OrderExplorer, finds_store_buffering_unless_all_is_sequentially_consistent) {
  Outcomes const strong{{0, 1}, {1, 0}, {1, 1}};
  auto weak = strong;
  weak.insert({0, 0});
  EXPECT_EQ(store_buffering(std::memory_order_seq_cst, std::memory_order_seq_cst), strong);
  EXPECT_EQ(store_buffering(std::memory_order_acq_rel, std::memory_order_seq_cst), weak);
  EXPECT_EQ(store_buffering(std::memory_order_seq_cst, std::memory_order_acquire), weak);
}

/// One thread writes data and sets a flag. Another reads the data once it sees the flag.
Findings message_passing(std::memory_order store, std::memory_order load) {
  return explore([=] {
    auto const words = std::make_shared<Pair>();
    return std::vector<Body>{[=] {
                               words->data.write(7);
                               words->x.store(1, store);
                             },
                             [=] {
                               if (words->x.load(load) == 1) check(words->data.read() == 7, "old data");
                             }};
  });
}

TEST(OrderExplorer, detects_unpublished_data) {
  EXPECT_EQ(message_passing(std::memory_order_release, std::memory_order_acquire).failure, "");
  EXPECT_NE(message_passing(std::memory_order_relaxed, std::memory_order_acquire).failure, "");
  EXPECT_NE(message_passing(std::memory_order_release, std::memory_order_relaxed).failure, "");
}

TEST(OrderExplorer, detects_data_written_after_the_release) {
  auto const findings = explore([] {
    auto const words = std::make_shared<Pair>();
    return std::vector<Body>{[=] {
                               words->x.store(1, std::memory_order_release);
                               words->data.write(7);
                             },
                             [=] {
                               if (words->x.load(std::memory_order_acquire) == 1) static_cast<void>(words->data.read());
                             }};
  });
  EXPECT_NE(findings.failure, "");
}

TEST(OrderExplorer, continues_a_release_sequence_through_modifications) {
  auto const findings = explore([] {
    auto const words = std::make_shared<Pair>();
    return std::vector<Body>{[=] {
                               words->data.write(7);
                               words->x.store(1, std::memory_order_release);
                             },
                             [=] { words->x.fetch_or(2, std::memory_order_relaxed); },
                             [=] {
                               if (words->x.load(std::memory_order_acquire) == 3)
                                 check(words->data.read() == 7, "old data");
                             }};
  });
  EXPECT_EQ(findings.failure, "");
  EXPECT_TRUE(findings.complete);
}

/// Two loads of one word never go back in its modification order, in one thread or through an acquire.
TEST(OrderExplorer, keeps_the_loads_of_one_word_in_order) {
  auto const findings = explore([] {
    auto const words = std::make_shared<Pair>();
    return std::vector<Body>{[=] {
                               words->x.store(1, std::memory_order_relaxed);
                               words->x.store(2, std::memory_order_relaxed);
                             },
                             [=] {
                               auto const first = words->x.load(std::memory_order_relaxed);
                               words->y.store(first, std::memory_order_release);
                             },
                             [=] {
                               auto const first = words->y.load(std::memory_order_acquire);
                               check(words->x.load(std::memory_order_relaxed) >= first,
                                     "a later load returned an older value");
                             }};
  });
  EXPECT_EQ(findings.failure, "");
  EXPECT_TRUE(findings.complete);
}

TEST(OrderExplorer, detects_a_thread_that_is_never_woken) {
  for (bool const wakes : {true, false}) {
    auto const findings = explore([wakes] {
      auto const words = std::make_shared<Pair>();
      return std::vector<Body>{[=] { words->x.sleep(0); },
                               [=] {
                                 words->x.store(1, std::memory_order_seq_cst);
                                 if (wakes) words->x.wake();
                               }};
    });
    EXPECT_EQ(findings.failure, wakes ? "" : "a thread sleeps forever");
  }
}

/// Without the reduction, the search would try (4+4)!/(4! 4!) orders of eight steps on eight words.
TEST(OrderExplorer, tries_orders_of_independent_steps_once) {
  auto const findings = explore([] {
    auto const words = std::make_shared<std::array<Word, 8>>();
    auto const body = [words](std::size_t from) {
      for (auto i = from; i < from + 4; ++i) (*words)[i].store(1, std::memory_order_seq_cst);
    };
    return std::vector<Body>{[=] { body(0); }, [=] { body(4); }};
  });
  EXPECT_EQ(findings.executions, 1U);
}

}  // namespace
}  // namespace crossrank::test::orders
