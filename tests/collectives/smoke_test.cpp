#include <numeric>
#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <gtest/gtest.h>

#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

namespace {
using namespace crossrank;

void smoke(Collective const& world) {
  int const n = world.world_size();
  int const r = world.rank();
  world.barrier();
  for (std::int64_t size : {1, 9, 1000, 300000}) {
    auto t = Tensor::zeros({size}, Dtype::i64);
    if (r == n - 1) for (auto& v : t.as_mutable<std::int64_t>()) v = 42 + size;
    world.broadcast(t, {n - 1});
    for (auto v : t.as<std::int64_t>()) ASSERT_EQ(v, 42 + size);
    auto in = Tensor::zeros({size}, Dtype::i64);
    for (auto& v : in.as_mutable<std::int64_t>()) v = r;
    auto out = Tensor::zeros({n, size}, Dtype::i64);
    world.all_gather(out, in);
    for (int i = 0; i < n; ++i) ASSERT_EQ(out.as<std::int64_t>()[std::size_t(i * size)], i);
    std::vector<std::int64_t> vals(std::size_t(size), r + 1);
    world.all_reduce(std::span(vals));
    ASSERT_EQ(vals[0], n * (n + 1) / 2);
    if (n > 1) {
      for (int k = 0; k < 3; ++k) {
        if (r == 0) world.send(in, n - 1, {5});
        if (r == n - 1) { world.recv(t, 0, {5}); ASSERT_EQ(t.as<std::int64_t>()[0], 0); }
      }
    }
  }
  std::vector<std::byte> mine(std::size_t(r * 100), std::byte(r));
  auto all = world.all_gatherv(mine);
  ASSERT_EQ(all.size(), std::size_t(n));
  for (int i = 0; i < n; ++i) ASSERT_EQ(all[std::size_t(i)].size(), std::size_t(i * 100));
  for (int k = 0; k < 5; ++k) {
    auto sub = world.split_by(r % 2);
    sub.barrier();
    sub.close();
  }
}

TEST(Smoke, threads) {
  for (int n : {1, 2, 4}) test::run_thread_ranks(n, [](Collective world) { smoke(world); world.close(); });
}
CROSSRANK_RANK_SCENARIO(smoke_scenario) {
  auto world = connect({.backend="shm"});
  smoke(world);
  world.close();
  return 0;
}
TEST(Smoke, processes) {
  for (int n : {1, 2, 4}) { auto job = test::run_ranks(n, "smoke_scenario"); EXPECT_TRUE(job.ok()) << job.text(); }
}
}
