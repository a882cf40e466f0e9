#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/network.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/memory_packet_transport.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank::test {
namespace {

TEST(OpenWorld, names_the_ranks_that_want_different_backends) {
  auto const hub = std::make_shared<MemoryHub>(3);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([hub, rank] {
      auto const network = spi::make_network(std::make_unique<MemoryPacketTransport>(hub, rank));
      auto const error = error_of<MismatchError>([&] {
        (void)network->open_world({.job = "test",
                                   .timeout_policy = {.timeout = step_timeout},
                                   .connect_timeout = step_timeout,
                                   .backend = rank == 1 ? "mpi" : "composite"});
      });
      EXPECT_EQ(error.expected, "\"composite\" (rank 0)");
      EXPECT_EQ(error.got, "\"mpi\" (rank 1)");
      EXPECT_THAT(error.hint, testing::HasSubstr("CROSSRANK_BACKEND"));
      EXPECT_FALSE(error.group_usable);
    });
  }
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

}  // namespace
}  // namespace crossrank::test
