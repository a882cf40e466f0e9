#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <crossrank/spi/transport.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/packet_cases.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

namespace crossrank::test {
namespace {

class MessageConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(MessageConformance, holds) {
  auto const& parameter = GetParam();
  run_message_ranks(parameter.ranks, [&](Collective const& world, MemoryHub&) {
    run_conformance_case(parameter.test, {world, {}});
  });
}

INSTANTIATE_TEST_SUITE_P(Case, MessageConformance, testing::ValuesIn(packet_cases({1, 2, 3, 4, 8})),
                         [](auto const& one) { return parameter_name(one.param); });

TEST(MessageTransport, knows_the_ranks_of_its_node) {
  run_message_ranks(5, [](Collective const& world, MemoryHub&) {
    EXPECT_EQ(world.local_world_size(), world.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(world.local_rank(), world.rank() / 2);
    auto const odd = world.split({{3, 1}, {0, 2, 4}});
    EXPECT_EQ(odd.local_size_in_group(), odd.world_size());
  });
}

TEST(MessageTransport, moves_large_payloads) {
  run_message_ranks(3, [](Collective const& world, MemoryHub&) {
    std::size_t const large = (std::size_t{3} << 20) + 17;
    for (int root = 0; root < 3; ++root) {
      auto bytes = pattern(world.rank() == root ? large : 0, root);
      bytes.resize(large);
      auto tensor = Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(large)}, Dtype::u8);
      world.broadcast(tensor, {root});
      EXPECT_EQ(bytes, pattern(large, root));
    }
    auto const all = world.all_gatherv(pattern(large * as_size(world.rank()), world.rank()));
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank], pattern(large * rank, static_cast<int>(rank)));
  });
}

/// The rank does not report its end. Its silence is noticed, and all get the same error.
TEST(MessageTransport, names_a_rank_and_its_host_when_it_falls_silent) {
  for (int const silent : {0, 2}) {
    auto const body = [&](Collective const& world, MemoryHub& hub) {
      world.barrier();
      if (world.rank() == silent) {
        hub.disconnect(silent);
        error_of<TimeoutError>([&] { world.barrier(); });
        return;
      }
      auto const info = error_of<TimeoutError>([&] { world.barrier(); });
      EXPECT_THAT(info.failed_ranks, testing::ElementsAre(silent));
      EXPECT_THAT(info.message, testing::HasSubstr("host host0"));
      EXPECT_FALSE(info.group_usable);
    };
    run_message_ranks(4, body, {.timeout = std::chrono::seconds(1)});
  }
}

/// A rank that computes still answers. It is slow, not dead, and all ranks are told so.
TEST(MessageTransport, blames_the_missing_rank_although_it_answers) {
  std::atomic<int> error_count{0};
  auto const body = [&](Collective const& world, MemoryHub&) {
    world.barrier();
    if (world.rank() == 1) {
      while (error_count != 2) std::this_thread::yield();
      error_of<TimeoutError>([&] { world.barrier(); });
      return;
    }
    auto const info = error_of<TimeoutError>([&] { world.barrier(); });
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(1));
    EXPECT_THAT(info.message, testing::HasSubstr("alive"));
    ++error_count;
  };
  run_message_ranks(3, body, {.timeout = std::chrono::milliseconds(700)});
}

TEST(MessageTransport, waits_longer_for_a_rank_in_user_code) {
  auto const body = [](Collective const& world, MemoryHub&) {
    world.barrier();
    auto const late = world.split_by(0);
    if (world.rank() == 2) {
      world.transport()->mark_user_code(spi::UserCode::begins);
      auto const until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
    late.barrier();
    if (world.rank() == 2) world.transport()->mark_user_code(spi::UserCode::ends);
  };
  run_message_ranks(3, body, {.timeout = std::chrono::milliseconds(1200)});
}

}  // namespace
}  // namespace crossrank::test
