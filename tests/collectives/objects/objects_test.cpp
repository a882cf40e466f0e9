#include <crossrank/objects.hpp>

#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/connected_ranks.hpp"
#include "tests/collectives/unwritable_object.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {
namespace {

struct Step {
  int id = 0;
  std::string text{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(id, text);
  }
  bool operator==(Step const&) const = default;
};

std::string long_text(int rank) { return std::string(40'000, static_cast<char>('a' + rank)); }

void every_verb_brings_objects(Collective const& world) {
  int const n = world.world_size();
  int const me = world.rank();
  for (int root = 0; root < n; ++root) {
    EXPECT_EQ(world.broadcast_object(std::int64_t{me} + 16'777'217, {root}), root + 16'777'217);
    EXPECT_EQ(world.broadcast_object(me == root ? Step{root, long_text(root)} : Step{}, {root}),
              (Step{root, long_text(root)}));
    std::vector<Json> list(2);
    if (me == root) list = {Json{{"root", root}}, Json()};
    world.broadcast_objects(list, {root});
    EXPECT_EQ(list, (std::vector<Json>{Json{{"root", root}}, Json()}));

    std::vector<std::string> expected;
    for (int rank = 0; rank < n; ++rank) expected.push_back(rank % 2 == 0 ? "short" : long_text(rank));
    auto const& mine = at_rank(expected, me);
    EXPECT_EQ(world.all_gather_objects(mine), expected);
    EXPECT_EQ(world.gather_objects(mine, {root}), me == root ? expected : std::vector<std::string>{});
    EXPECT_EQ(world.scatter_objects(me == root ? expected : std::vector<std::string>{}, {root}), mine);
  }
  auto ranks = all_ranks(n);
  EXPECT_EQ(world.all_gather_object(me), ranks);
}

void objects_go_round(Collective const& world) {
  int const n = world.world_size();
  int const next = (world.rank() + 1) % n;
  int const previous = (world.rank() + n - 1) % n;
  world.send_object(Step{world.rank(), "small"}, next);
  world.send_object(long_text(world.rank()), next);
  EXPECT_EQ(world.recv_object<Step>(previous), (Step{previous, "small"}));
  EXPECT_EQ(world.recv_object<std::string>(previous), long_text(previous));
}

class Objects : public testing::TestWithParam<int> {};

TEST_P(Objects, arrive_by_every_operation) {
  run_thread_ranks(GetParam(), [](Collective world) {
    every_verb_brings_objects(world);
    objects_go_round(world);
    world.close();
  });
}

CROSSRANK_RANK_SCENARIO(objects) {
  return run_connected([](Collective const& world) {
    every_verb_brings_objects(world);
    objects_go_round(world);
  });
}

TEST_P(Objects, arrive_between_processes) { expect_success(GetParam(), "objects"); }

INSTANTIATE_TEST_SUITE_P(Ranks, Objects, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

/// Expects that `call` throws on every rank and that the group stays usable.
void expect_failure_everywhere(int ranks, int thrower, std::function<void(Collective const&, bool)> const& call) {
  run_thread_ranks(ranks, [&](Collective world) {
    bool const throws = world.rank() == thrower;
    try {
      call(world, throws);
      ADD_FAILURE() << "rank " << world.rank() << " did not throw";
    } catch (std::out_of_range const& e) {
      EXPECT_TRUE(throws);
      EXPECT_STREQ(e.what(), "no such layer");
    } catch (RemoteError const& e) {
      EXPECT_FALSE(throws);
      EXPECT_EQ(e.remote_type(), "std::out_of_range");
      EXPECT_THAT(e.what(), testing::HasSubstr("no such layer"));
      ASSERT_EQ(e.failed_ranks().size(), 1U);
      EXPECT_EQ(e.failed_ranks()[0], thrower);
      EXPECT_TRUE(e.group_usable());
    }
    EXPECT_EQ(world.all_gather_objects(world.rank()).size(), as_size(ranks));
    world.close();
  });
}

TEST(Objects, fail_a_broadcast_on_every_rank_when_not_serializable) {
  expect_failure_everywhere(
      3, 1, [](Collective const& world, bool) { static_cast<void>(world.broadcast_object(Unwritable{}, {1})); });
}

TEST(Objects, fail_at_their_receiver_when_not_serializable) {
  expect_failure_everywhere(2, 0, [](Collective const& world, bool throws) {
    if (throws) {
      world.send_object(Unwritable{}, 1);
    } else {
      static_cast<void>(world.recv_object<Unwritable>(0));
    }
  });
}

TEST(Objects, fail_a_gather_on_every_rank_when_one_is_not_serializable) {
  for (bool const all : {true, false}) {
    expect_failure_everywhere(3, 2, [all](Collective const& world, bool throws) {
      detail::Produce const part = [throws] {
        if (throws) throw std::out_of_range("no such layer");
        return detail::Bytes(1000);
      };
      if (all) {
        static_cast<void>(detail::all_gather_bytes(world, "all", part));
      } else {
        static_cast<void>(detail::gather_bytes(world, "one", 0, part));
      }
    });
  }
}

TEST(Objects, are_refused_by_the_receiver_when_of_another_type) {
  run_thread_ranks(2, [](Collective world) {
    if (world.rank() == 0) {
      EXPECT_EQ(world.broadcast_object(7), 7);
    } else {
      try {
        static_cast<void>(world.broadcast_object(std::string()));
        ADD_FAILURE() << "expected an exception";
      } catch (FormatError const& e) {
        EXPECT_EQ(e.operation(), "broadcast_object");
        EXPECT_EQ(e.rank(), 1);
        EXPECT_EQ(e.info().group, world.name());
        EXPECT_EQ(e.info().world_size, 2);
      }
    }
    EXPECT_EQ(world.broadcast_object(8), 8);
    world.close();
  });
}

TEST(Objects, fail_a_scatter_on_every_rank_when_their_number_is_wrong) {
  run_thread_ranks(3, [](Collective world) {
    std::vector<int> const two{1, 2};
    if (world.rank() == 0) {
      auto const info = error_of<UsageError>([&] { static_cast<void>(world.scatter_objects(two)); });
      EXPECT_EQ(info.expected, "3");
      EXPECT_THAT(info.hint, testing::HasSubstr("one object for each rank"));
    } else {
      EXPECT_THROW(static_cast<void>(world.scatter_objects(two)), RemoteError);
    }
    EXPECT_EQ(world.broadcast_object(1), 1);
    world.close();
  });
}

TEST(Objects, are_refused_in_a_list_of_wrong_length) {
  run_thread_ranks(2, [](Collective world) {
    std::vector<int> list(world.rank() == 0 ? 3 : 2, world.rank());
    if (world.rank() == 0) {
      world.broadcast_objects(list);
    } else {
      EXPECT_THROW(world.broadcast_objects(list), MismatchError);
      EXPECT_EQ(list, (std::vector<int>{1, 1}));
    }
    world.close();
  });
}

TEST(Objects, are_refused_for_ranks_out_of_range) {
  run_thread_ranks(2, [](Collective world) {
    for (int const rank : {-1, 2}) {
      EXPECT_THROW(static_cast<void>(world.broadcast_object(1, {rank})), UsageError);
      EXPECT_THROW(static_cast<void>(world.gather_objects(1, {rank})), UsageError);
      EXPECT_THROW(world.send_object(1, rank), UsageError);
      EXPECT_THROW(static_cast<void>(world.recv_object<int>(rank)), UsageError);
    }
    EXPECT_THROW(world.send_object(1, world.rank()), UsageError);
    world.close();
  });
}

/// Object operations are collectives: they leave the messages of the user alone.
TEST(Objects, arrive_while_messages_of_the_user_are_under_way) {
  run_thread_ranks(3, [](Collective world) {
    std::vector<std::string> const all{std::string(100, 'a'), std::string(3'000'000, 'b'), std::string(7, 'c')};
    auto const own = at_rank(all, world.rank());
    auto message = Tensor::scalar(world.rank());
    std::optional<Request> early;
    if (world.rank() == 0) early = world.irecv(message, 1);  // posted before, sent after
    if (world.rank() == 2) early = world.isend(message, 1);  // sent before, received after
    auto const gathered = world.gather_objects(own);
    EXPECT_EQ(gathered, world.rank() == 0 ? all : std::vector<std::string>{});
    EXPECT_EQ(world.scatter_objects(world.rank() == 0 ? all : std::vector<std::string>{}), own);
    if (world.rank() == 1) {
      world.send(Tensor::scalar(7), 0);
      world.recv(message, 2);
      EXPECT_EQ(message.item<int>(), 2);
    }
    if (early) early->wait();
    if (world.rank() == 0) {
      EXPECT_EQ(message.item<int>(), 7);
    }
    world.close();
  });
}

TEST(Objects, arrive_whole_when_larger_than_a_piece) {
  run_thread_ranks(2,
                   [](Collective world) {
                     std::vector<std::uint32_t> values(5'000'000);
                     std::iota(values.begin(), values.end(), 0U);
                     auto const got = world.broadcast_object(world.rank() == 0 ? values : std::vector<std::uint32_t>{});
                     EXPECT_TRUE(got == values);
                     world.close();
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

}  // namespace
}  // namespace crossrank::test
