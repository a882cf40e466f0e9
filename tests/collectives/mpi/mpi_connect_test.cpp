#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/algorithms/serial_reduction.hpp"

/// The backend that `connect()` chooses under mpirun, and that results do not depend on it.
namespace crossrank::test {
namespace {

std::string expected_backend() {
  auto const* const text = std::getenv("CROSSRANK_TEST_EXPECTED");
  return text == nullptr ? "" : text;
}

/// A group that the program never closes. It is destroyed with the static objects, after MPI was finalized.
Collective forgotten;

/// The program names no backend. One host uses its memory, several hosts use memory and MPI.
TEST(MpiConnect, picks_a_backend_that_serves_the_job) {
  auto world = connect();
  EXPECT_EQ(world.backend(), expected_backend());
  std::vector<std::int64_t> values(5000, world.rank() + 1);
  world.all_reduce(std::span(values));
  EXPECT_EQ(values.back(), world.world_size() * (world.world_size() + 1) / 2);
  if (expected_backend() == "composite") {
    EXPECT_LT(world.local_world_size(), world.world_size());
  }
  forgotten = world.split_by(0);
  auto const tp = GroupCoordinator::create(world, {{0, 2}, {1, 3}}, {.name = "tp"});
  EXPECT_EQ(tp.broadcast_object(world.rank(), {.src = 1}), world.rank() % 2 + 2);
  world.close();
}

TEST(MpiConnect, builds_the_same_job_as_connect) {
  auto const job = build_best_collective({.mesh = {.tp_size = 2}});
  ASSERT_NE(job.mesh(), nullptr) << "every rank became a job of its own";
  EXPECT_EQ(job.world().world_size(), 4);
  job.world().barrier();
}

/// A job of several ranks without a usable backend is refused. It must not become several jobs of one rank.
TEST(MpiConnect, refuses_a_job_that_no_backend_can_serve) {
  try {
    static_cast<void>(connect({.connect_timeout = std::chrono::seconds(20)}));
    ADD_FAILURE() << "connected";
  } catch (UnavailableError const& e) {
    EXPECT_THAT(e.report(), testing::HasSubstr("\"fake\" serves only a single rank"));
    EXPECT_THAT(e.report(), testing::HasSubstr("composite"));
  }
}

/// Returns the results of some collectives on one backend. Their bytes must be the same on every backend.
std::vector<std::byte> results_on(Collective& world) {
  std::vector<std::byte> all;
  auto const keep = [&](Tensor const& tensor) { all.insert(all.end(), tensor.bytes().begin(), tensor.bytes().end()); };
  auto const ranks = as_size(world.world_size());
  for (auto const dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f8_e4m3, Dtype::c64, Dtype::i16}) {
    for (std::size_t const count : {std::size_t{1}, std::size_t{1001} * ranks, std::size_t{40'003} * ranks}) {
      auto const elements = static_cast<std::int64_t>(count);
      auto const bytes =
          random_elements(dtype, count, static_cast<std::uint32_t>(count) + static_cast<std::uint32_t>(world.rank()));
      auto const mine = [&] {
        auto tensor = Tensor::empty({elements}, dtype);
        std::ranges::copy(bytes, tensor.mutable_bytes().begin());
        return tensor;
      };
      auto sum = mine();
      world.all_reduce(sum);
      keep(sum);
      auto product = mine();
      world.reduce(product, ReduceOp::prod, {world.world_size() - 1});
      keep(product);
      if (count == 1) continue;
      auto part = Tensor::empty({elements / world.world_size()}, dtype);
      world.reduce_scatter(part, mine());
      keep(part);
    }
  }
  return all;
}

TEST(MpiConnect, gives_the_same_bits_on_every_backend) {
  // Ranks that declare several hosts share no memory.
  std::vector<std::string> backends{"mpi", "composite"};
  if (std::getenv("CROSSRANK_HOST_ID") == nullptr) backends.emplace_back("shm");
  std::vector<std::vector<std::byte>> results;
  for (auto const& backend : backends) {
    auto world = connect({.backend = backend,
                          .timeout = std::chrono::minutes(5),
                          .job_id = std::string("bits on ") + backend,
                          .arena_cap = std::uint64_t{64} << 20});
    ASSERT_EQ(world.backend(), backend);
    results.push_back(results_on(world));
    world.close();
  }
  EXPECT_FALSE(results[0].empty());
  for (std::size_t i = 1; i < results.size(); ++i) EXPECT_TRUE(results[i] == results[0]) << backends[i] << " differs";
}

}  // namespace
}  // namespace crossrank::test
