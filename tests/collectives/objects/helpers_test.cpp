#include <crossrank/helpers.hpp>

#include <atomic>
#include <numeric>
#include <optional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "tests/collectives/conformance/recording_transport.hpp"
#include "tests/collectives/connected_ranks.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

void all_helpers_give_their_results(Collective const& world) {
  int const n = world.world_size();
  int const me = world.rank();
  EXPECT_EQ(is_distributed(world), n > 1);
  EXPECT_EQ(is_main_process(world), me == 0);
  EXPECT_EQ(is_local_main_process(world), me == world.transport()->node_ranks().front());
  barrier(world);
  EXPECT_EQ(zero_first(world, [&] { return me; }), me);
  EXPECT_EQ(zero_first(
                world, [&] { return me; }, FirstRank::of_node),
            me);
  auto const only = zero_only(world, [] { return 7; });
  EXPECT_EQ(only.has_value(), me == 0);
  EXPECT_EQ(zero_only(world, [] {}), me == 0);
  EXPECT_EQ(zero_only_and_broadcast(world, [&] { return me + 7; }), 7);
  zero_only_and_broadcast(world, [&] { EXPECT_EQ(me, 0); });
  // The reference sends float32, which cannot represent these values.
  EXPECT_EQ(compute_and_broadcast(world, [] { return 16'777'217; }), 16'777'217);
  EXPECT_EQ(compute_and_broadcast(world, [] { return 0.1; }), 0.1);
  EXPECT_EQ(compute_and_broadcast(world, [&] { return std::string(1000, static_cast<char>('a' + me)); }, {n - 1}),
            std::string(1000, static_cast<char>('a' + n - 1)));
  compute_and_broadcast(world, [] {});
  std::vector<std::int64_t> expected;
  for (int rank = 0; rank < n; ++rank) expected.push_back((std::int64_t{1} << 53) + 1 + rank);
  for (int root = 0; root < n; ++root) {
    auto const mine = [&] { return (std::int64_t{1} << 53) + 1 + me; };
    auto const want = me == root ? expected : std::vector<std::int64_t>{};
    EXPECT_EQ(gather_scalar_from_all_ranks(world, mine, {root}), want);
    EXPECT_EQ(gather_from_all_ranks(world, mine, {root}), want);
    auto const sum = reduce_and_broadcast(
        world, mine, [](auto const& all) { return std::accumulate(all.begin(), all.end(), std::int64_t{0}); }, {root});
    EXPECT_EQ(sum, std::accumulate(expected.begin(), expected.end(), std::int64_t{0}));
  }
  EXPECT_EQ(broadcast_dict(world, Json{{"rank", me}}), (Json{{"rank", 0}}));
  EXPECT_EQ(broadcast_dict(world, std::map<std::string, double>{{"x", me}}), (std::map<std::string, double>{{"x", 0}}));
}

class Helpers : public testing::TestWithParam<int> {};

TEST_P(Helpers, return_their_results) {
  run_thread_ranks(GetParam(), [](Collective world) {
    all_helpers_give_their_results(world);
    world.close();
  });
}

CROSSRANK_RANK_SCENARIO(helpers) { return run_connected(all_helpers_give_their_results); }

TEST_P(Helpers, return_their_results_to_processes) { expect_success(GetParam(), "helpers"); }

INSTANTIATE_TEST_SUITE_P(Ranks, Helpers, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

/// A helper, and whether the callable of this rank throws.
struct Throwing {
  char const* name;
  void (*call)(Collective const& world, std::function<int()> const& fn);
  bool only_rank_0 = false;  ///< the callable runs only on rank 0
};

void PrintTo(Throwing const& helper, std::ostream* out) { *out << helper.name; }

class ThrowInHelper : public testing::TestWithParam<Throwing> {};

TEST_P(ThrowInHelper, is_reported_to_every_rank_and_the_group_stays_usable) {
  for (int thrower = 0; thrower < (GetParam().only_rank_0 ? 1 : 3); ++thrower) {
    run_thread_ranks(3, [&](Collective world) {
      bool const throws = world.rank() == thrower;
      auto const fn = [&]() -> int {
        if (throws) throw std::domain_error("there is no cache");
        return 1;
      };
      try {
        GetParam().call(world, fn);
        ADD_FAILURE() << "rank " << world.rank() << " did not throw";
      } catch (std::domain_error const&) {
        EXPECT_TRUE(throws);
      } catch (RemoteError const& e) {
        EXPECT_FALSE(throws);
        EXPECT_EQ(e.remote_type(), "std::domain_error");
        EXPECT_THAT(e.what(),
                    HasSubstr("rank " + std::to_string(thrower) + " threw std::domain_error: there is no cache"));
        EXPECT_THAT(std::vector<int>(e.failed_ranks().begin(), e.failed_ranks().end()), testing::ElementsAre(thrower));
        EXPECT_TRUE(e.group_usable());
      }
      all_helpers_give_their_results(world);
      world.close();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, ThrowInHelper,
    testing::Values(Throwing{"zero_first",
                             [](Collective const& world, std::function<int()> const& fn) { zero_first(world, fn); }},
                    Throwing{"zero_first_of_node",
                             [](Collective const& world, std::function<int()> const& fn) {
                               zero_first(world, fn, FirstRank::of_node);
                             }},
                    Throwing{"zero_only_and_broadcast",
                             [](Collective const& world, std::function<int()> const& fn) {
                               zero_only_and_broadcast(world, fn);
                             },
                             true},
                    Throwing{"compute_and_broadcast",
                             [](Collective const& world, std::function<int()> const& fn) {
                               compute_and_broadcast(world, fn);
                             },
                             true},
                    Throwing{"gather_from_all_ranks",
                             [](Collective const& world, std::function<int()> const& fn) {
                               static_cast<void>(gather_from_all_ranks(world, fn));
                             }},
                    Throwing{"gather_scalar_from_all_ranks",
                             [](Collective const& world, std::function<int()> const& fn) {
                               static_cast<void>(gather_scalar_from_all_ranks(world, fn));
                             }},
                    Throwing{"reduce_and_broadcast_first",
                             [](Collective const& world, std::function<int()> const& fn) {
                               reduce_and_broadcast(world, fn, [](std::vector<int> const&) { return 0; });
                             }},
                    Throwing{"reduce_and_broadcast_second",
                             [](Collective const& world, std::function<int()> const& fn) {
                               reduce_and_broadcast(
                                   world, [] { return 0; }, [&](std::vector<int> const&) { return fn(); });
                             },
                             true}),
    [](auto const& each) { return each.param.name; });

/// A value that only its sender can read.
struct Unreadable {
  template <class Archive>
  void save(Archive&) const {}
  template <class Archive>
  void load(Archive&) {
    throw std::out_of_range("no such layer");
  }
};

TEST(ReduceAndBroadcast, tells_all_ranks_that_the_root_cannot_decode_a_value) {
  run_thread_ranks(2, [](Collective world) {
    auto const reduce = [&] {
      static_cast<void>(reduce_and_broadcast(
          world, [] { return Unreadable{}; }, [](std::vector<Unreadable> const&) { return 0; }));
    };
    if (world.rank() == 0) {
      EXPECT_ANY_THROW(reduce());
    } else {
      EXPECT_THROW(reduce(), RemoteError);
    }
    all_helpers_give_their_results(world);
    world.close();
  });
}

TEST(ZeroFirst, runs_the_others_after_rank_0) {
  std::atomic<bool> filled{false};
  run_thread_ranks(4, [&](Collective world) {
    zero_first(world, [&] {
      if (world.rank() == 0) {
        filled = true;
      } else {
        EXPECT_TRUE(filled);
      }
    });
    world.close();
  });
}

TEST(ZeroFirst, does_not_run_the_others_when_rank_0_threw) {
  std::atomic<int> runs{0};
  run_thread_ranks(3, [&](Collective world) {
    EXPECT_ANY_THROW(zero_first(world, [&] {
      ++runs;
      throw 42;
    }));
    world.close();
  });
  EXPECT_EQ(runs, 1);
}

TEST(ZeroFirst, names_all_ranks_that_threw_and_the_types_of_foreign_exceptions) {
  run_thread_ranks(3, [](Collective world) {
    try {
      zero_first(world, [&] {
        if (world.rank() != 0) throw 42;
      });
    } catch (int number) {
      EXPECT_NE(world.rank(), 0);
      EXPECT_EQ(number, 42);
    } catch (RemoteError const& e) {
      EXPECT_EQ(e.failed_ranks().size(), 2U);
      EXPECT_EQ(e.remote_type(), "int");
    }
    world.close();
  });
}

/// On rank 0 alone it does not wait for other ranks, and its exception stays there.
TEST(ZeroOnly, does_not_wait_for_other_ranks) {
  run_thread_ranks(3, [](Collective const& world) {
    if (world.rank() == 0) {
      EXPECT_EQ(zero_only(world, [] { return 5; }), std::optional(5));
      EXPECT_THROW(zero_only(world, []() -> int { throw std::domain_error("no space"); }), std::domain_error);
    }
    world.barrier();
    if (world.rank() != 0) {
      EXPECT_EQ(zero_only(world, []() -> int { throw std::domain_error("not here"); }), std::nullopt);
    }
    world.barrier();
  });
}

/// Ranks that wait for rank 0 elsewhere meanwhile wait up to the user limit.
TEST(ZeroOnly, counts_as_user_code_for_other_ranks) {
  auto const watched = std::make_shared<RecordingTransport>(std::make_shared<fake::FakeTransport>("world"));
  auto const world = make_collective(watched, {});
  EXPECT_EQ(zero_only(world, [&] { return watched->in_user_code(); }), std::optional(1));
  EXPECT_EQ(watched->in_user_code(), 0);
  EXPECT_THROW(zero_only(world, [] { throw std::domain_error("no space"); }), std::domain_error);
  EXPECT_EQ(watched->in_user_code(), 0);
}

TEST(AbortOnThrow, reports_the_reason_to_the_others) {
  auto const errors = try_thread_ranks(2, [](Collective const& world) {
    if (world.rank() == 0) abort_on_throw(world, [] { throw std::runtime_error("out of luck"); });
    world.barrier();
  });
  EXPECT_EQ(text_of(errors[0]), "out of luck");
  EXPECT_THAT(text_of(errors[1]), HasSubstr("out of luck"));
  EXPECT_THROW(std::rethrow_exception(errors[1]), PeerLostError);
}

TEST(Helpers, treat_a_missing_group_as_one_rank) {
  Collective const none;
  EXPECT_FALSE(is_distributed(none));
  EXPECT_TRUE(is_main_process(none));
  EXPECT_TRUE(is_local_main_process(none));
  barrier(none);
}

}  // namespace
}  // namespace crossrank::test
