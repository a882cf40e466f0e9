// `CheckLevel::collective`: if ranks are about to make different calls, all of them get an error before any data moves.
#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/helpers.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/core/minimal_transport.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test::call_checking_test {
namespace {

using testing::HasSubstr;

constexpr int ranks = 3;
constexpr std::int32_t before = 7;  ///< value of a tensor before it receives data

Tensor tensor_of(Shape const& shape, Dtype dtype = Dtype::i32) {
  auto tensor = Tensor::zeros(shape, dtype);
  if (dtype == Dtype::i32) std::ranges::fill(tensor.as_mutable<std::int32_t>(), before);
  return tensor;
}

using Call = std::function<void(Collective const&)>;

Call broadcast(Shape const& shape, int root, Dtype dtype = Dtype::i32) {
  return [=](Collective const& group) {
    auto tensor = tensor_of(shape, dtype);
    group.broadcast(tensor, {root});
  };
}

Call all_reduce(ReduceOp op) {
  return [=](Collective const& group) {
    auto tensor = tensor_of({4});
    group.all_reduce(tensor, op);
  };
}

Call gather_rows(std::vector<std::int64_t> const& rows) {
  return [=](Collective const& group) {
    std::int64_t all = 0;
    for (auto const n : rows) all += n;
    auto out = tensor_of({all, 2});
    group.all_gatherv(out, tensor_of({at_rank(rows, group.rank()), 2}), {.rows = rows});
  };
}

Call gather_objects(int root) {
  return [=](Collective const& group) { static_cast<void>(group.gather_objects(std::string(1000, 'x'), {root})); };
}

Call split(std::vector<std::vector<int>> const& lists) {
  return [=](Collective const& group) { static_cast<void>(group.split(lists)); };
}

void barrier(Collective const& group) { group.barrier(); }

struct Disagreement {
  char const* name;
  Call one;                   ///< call of rank 0
  Call other;                 ///< call of the other ranks
  char const* text_of_one;    ///< text of rank 0's call in the error
  char const* text_of_other;  ///< text of the others' call in the error
};

void PrintTo(Disagreement const& one, std::ostream* out) { *out << one.name; }

std::vector<Disagreement> disagreements() {
  auto const in_turn = [](Call const& first, Call const& second) {
    return [=](Collective const& group) {
      first(group);
      second(group);
    };
  };
  return {
      {"operation", barrier, broadcast({4}, 0), "barrier", "broadcast root 0 I32 [4]"},
      {"root", broadcast({4}, 0), broadcast({4}, 1), "broadcast root 0 I32 [4]", "broadcast root 1 I32 [4]"},
      {"shape", broadcast({2, 3}, 1), broadcast({3, 2}, 1), "broadcast root 1 I32 [2, 3]",
       "broadcast root 1 I32 [3, 2]"},
      {"size", broadcast({400'000}, 1), broadcast({400'001}, 1), "broadcast root 1 I32 [400000]",
       "broadcast root 1 I32 [400001]"},
      {"dtype", broadcast({4}, 1), broadcast({4}, 1, Dtype::f32), "broadcast root 1 I32 [4]",
       "broadcast root 1 F32 [4]"},
      {"op", all_reduce(ReduceOp::sum), all_reduce(ReduceOp::max), "all_reduce I32 sum [4]", "all_reduce I32 max [4]"},
      {"rows", gather_rows({1, 2, 3}), gather_rows({1, 3, 2}), "all_gatherv I32 rows of [1, 2] parts 1+2+3",
       "all_gatherv I32 rows of [3, 2] parts 1+3+2"},
      {"order", in_turn(broadcast({4}, 1), all_reduce(ReduceOp::sum)),
       in_turn(all_reduce(ReduceOp::sum), broadcast({4}, 1)), "broadcast root 1 I32 [4]", "all_reduce I32 sum [4]"},
      {"root_of_objects", gather_objects(0), gather_objects(1), "gather_objects root 0", "gather_objects root 1"},
      {"object_operation", [](Collective const& group) { zero_only_and_broadcast(group, [] {}); },
       [](Collective const& group) { static_cast<void>(compute_and_broadcast(group, [] { return 1; })); },
       "zero_only_and_broadcast root 0", "compute_and_broadcast root 0"},
      {"lists", split({{0, 1, 2}}), split({{0, 1}, {2}}), "split [0, 1, 2]", "split [0, 1] [2]"},
      {"non_blocking",
       [](Collective const& group) {
         auto tensor = tensor_of({4});
         group.ibroadcast(tensor, {1}).wait();
       },
       [](Collective const& group) { group.ibarrier().wait(); }, "broadcast root 1 I32 [4]", "barrier"},
  };
}

/// Expects that the error of every rank names both calls, and that the group has ended.
void expect_mismatch(Collective const& group, Disagreement const& sides) {
  auto const info = error_of<MismatchError>([&] { (group.rank() == 0 ? sides.one : sides.other)(group); });
  EXPECT_THAT(info.message, HasSubstr(std::string("rank 0 calls ") + sides.text_of_one)) << "rank " << group.rank();
  EXPECT_THAT(info.message, HasSubstr(std::string("ranks 1-2 call ") + sides.text_of_other)) << "rank " << group.rank();
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0)) << "the ranks in the minority\n" << info.message;
  EXPECT_FALSE(info.group_usable);
  EXPECT_THAT(info.message, testing::Not(HasSubstr("#"))) << "the error must not show digests";
  auto const later = error_of<MismatchError>([&] { group.barrier(); });
  EXPECT_EQ(later.message, info.message);
}

class CallChecking : public testing::TestWithParam<Disagreement> {};

TEST_P(CallChecking, names_both_calls_in_words) {
  run_thread_ranks(ranks, [](Collective const& world) {
    expect_mismatch(make_collective(world.transport(), world.timeout_policy(), CheckLevel::collective), GetParam());
  });
}

TEST_P(CallChecking, names_both_calls_in_words_over_messages) {
  for (bool const node_memory : {false, true}) {
    run_message_ranks(ranks,
                      [](Collective const& world, MemoryHub&) {
                        expect_mismatch(
                            make_collective(world.transport(), world.timeout_policy(), CheckLevel::collective),
                            GetParam());
                      },
                      {.node_memory = node_memory});
  }
}

TEST_P(CallChecking, names_both_calls_on_a_backend_that_compares_nothing) {
  run_thread_ranks(ranks, [](Collective const& world) {
    auto const plain = std::make_shared<MinimalTransport>(world.transport());
    expect_mismatch(make_collective(plain, world.timeout_policy(), CheckLevel::collective), GetParam());
    EXPECT_EQ(plain->posted(), 1) << "only the exchange of the calls was posted";
  });
}

INSTANTIATE_TEST_SUITE_P(Calls, CallChecking, testing::ValuesIn(disagreements()),
                         [](auto const& one) { return std::string(one.param.name); });

/// The default level also shows in words what it compares.
TEST_P(CallChecking, names_both_calls_in_words_at_the_default_level) {
  if (std::string_view(GetParam().name) == "object_operation")
    GTEST_SKIP() << "zero_only does not use the group at this level";
  run_thread_ranks(ranks, [](Collective const& world) {
    expect_mismatch(make_collective(world.transport(), world.timeout_policy(), CheckLevel::local), GetParam());
  });
}

TEST(CallCheckingCollective, moves_no_data_when_ranks_disagree) {
  run_thread_ranks(ranks, [](Collective const& world) {
    for (bool const plain : {false, true}) {
      auto const part = world.split({{0, 1, 2}});
      auto transport = part.transport();
      if (plain) transport = std::make_shared<MinimalTransport>(transport);
      auto const group = make_collective(transport, world.timeout_policy(), CheckLevel::collective);
      std::vector<Tensor> tensors{tensor_of({4}), tensor_of({300'000})};
      for (auto& tensor : tensors) {
        auto const mine = static_cast<std::int32_t>(world.rank());
        std::ranges::fill(tensor.as_mutable<std::int32_t>(), mine);
        error_of<MismatchError>([&] { group.broadcast(tensor, {world.rank() == 2 ? 2 : 0}); });
        EXPECT_TRUE(std::ranges::all_of(tensor.as<std::int32_t>(), [&](auto value) { return value == mine; }));
      }
    }
  });
}

TEST(CallCheckingCollective, accepts_ranks_that_agree) {
  run_thread_ranks(ranks, [](Collective const& world) {
    for (bool const plain : {false, true}) {
      auto transport = world.transport();
      if (plain) transport = std::make_shared<MinimalTransport>(transport);
      auto const group = make_collective(transport, world.timeout_policy(), CheckLevel::collective);
      for (int step = 0; step < 20; ++step) {
        auto tensor = tensor_of({step + 1});
        group.all_reduce(tensor);
        EXPECT_EQ(tensor.as<std::int32_t>()[0], ranks * before);
        auto request = group.ibarrier();
        group.barrier();
        request.wait();
      }
    }
  });
}

}  // namespace
}  // namespace crossrank::test::call_checking_test
