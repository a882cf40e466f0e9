#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Barrier, broadcast, all_gather and all_reduce: blocking, and through post and test.
namespace crossrank::test {
namespace {

using spi::OpKind;

void no_rank_passes_a_barrier_alone(ConformanceRank& self) {
  auto& world = self.world;
  auto& transport = *world.transport();
  int const last = world.world_size() - 1;
  auto token = Tensor::scalar<std::uint8_t>(1);
  if (world.rank() == 0) {
    auto const request_id = transport.post_barrier({.op_kind = OpKind::barrier});
    EXPECT_FALSE(transport.test(request_id));  // the last rank waits for the token before it arrives
    EXPECT_FALSE(transport.test(request_id));
    auto const sent = transport.post_send({.bytes = token.bytes()}, last, 0);
    transport.wait(sent, world.timeout_policy());
    transport.wait(request_id, world.timeout_policy());
    return;
  }
  if (world.rank() == last) world.recv(token, 0);
  world.barrier();
}

void broadcast_gives_all_the_roots_bytes(ConformanceRank& self) {
  auto& world = self.world;
  for (auto const size : boundary_sizes) {
    for (int root = 0; root < world.world_size(); ++root) {
      auto const expected = pattern(size, root + 1);
      auto tensor = Tensor::zeros({static_cast<std::int64_t>(size)}, Dtype::u8);
      if (root == world.rank()) std::copy(expected.begin(), expected.end(), tensor.mutable_bytes().begin());
      tensor = on_device(tensor);
      world.broadcast(tensor, {root});
      EXPECT_TRUE(std::ranges::equal(on_host(tensor).bytes(), expected)) << size << " bytes from " << root;
    }
  }
}

void all_gather_joins_in_rank_order(ConformanceRank& self) {
  auto& world = self.world;
  auto const ranks = world.world_size();
  for (auto const size : boundary_sizes) {
    auto const length = static_cast<std::int64_t>(size);
    auto const mine = pattern(size, world.rank());
    auto const in = on_device(
        Tensor::of(std::span<std::uint8_t const>(reinterpret_cast<std::uint8_t const*>(mine.data()), size), {length}));
    auto joined = on_device(Tensor::zeros({ranks, length}, Dtype::u8));
    world.all_gather(joined, in);
    auto const out = on_host(joined);
    for (int rank = 0; rank < ranks; ++rank) {
      auto const part = out.bytes().subspan(as_size(rank) * size, size);
      EXPECT_TRUE(std::ranges::equal(part, pattern(size, rank))) << size << " bytes of " << rank;
    }
  }
}

void all_gatherv_takes_any_sizes(ConformanceRank& self) {
  auto& world = self.world;
  auto const ranks = as_size(world.world_size());
  for (std::size_t shift = 0; shift < boundary_sizes.size(); ++shift) {
    auto const size_of = [&](std::size_t rank) { return boundary_sizes[(rank * 3 + shift) % boundary_sizes.size()]; };
    auto const mine = as_size(world.rank());
    auto const all = world.all_gatherv(pattern(size_of(mine), world.rank()));
    ASSERT_EQ(all.size(), ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(all[rank], pattern(size_of(rank), static_cast<int>(rank)));
  }
  for (auto const& nothing : world.all_gatherv({})) EXPECT_TRUE(nothing.empty());
}

void all_gather_works_in_place(ConformanceRank& self) {
  auto& world = self.world;
  std::size_t const part = 5000;
  auto const ranks = as_size(world.world_size());
  std::vector<std::byte> all(part * ranks);
  auto const mine = std::span(all).subspan(as_size(world.rank()) * part, part);
  std::ranges::copy(pattern(part, world.rank()), mine.begin());
  std::vector<std::size_t> const counts(ranks, part);
  auto& transport = *world.transport();
  transport.wait(transport.post_all_gatherv({OpKind::all_gatherv, 1}, {.bytes = mine}, counts, {.bytes = all}),
                 world.timeout_policy());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(std::ranges::equal(std::span(all).subspan(rank * part, part), pattern(part, static_cast<int>(rank))));
  }
}

void test_completes_an_operation_without_wait(ConformanceRank& self) {
  auto& world = self.world;
  auto& transport = *world.transport();
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int round = 0; round < 20; ++round) {
    auto data = pattern(round % 2 == 0 ? 40 : 4000, world.rank() == 0 ? round : -1);
    auto const request_id = transport.post_broadcast({OpKind::broadcast, 7}, {.bytes = data}, 0);
    while (!transport.test(request_id)) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::yield();
    }
    EXPECT_EQ(data, pattern(data.size(), round));
  }
}

/// A rank may be several operations ahead of its own waits. Data that it has not looked at yet must not be overwritten.
void operations_started_ahead_keep_their_data(ConformanceRank& self) {
  auto& world = self.world;
  auto const ranks = world.world_size();
  for (std::int64_t const size : {60, 6000}) {
    std::vector<Tensor> ins;
    std::vector<Tensor> outs;
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) {
      ins.push_back(Tensor::empty({size}, Dtype::u8));
      auto const bytes = pattern(as_size(size), world.rank() * 10 + i);
      std::ranges::copy(bytes, ins.back().mutable_bytes().begin());
      ins.back() = on_device(ins.back());
      outs.push_back(on_device(Tensor::empty({ranks * size}, Dtype::u8)));
    }
    for (std::size_t i = 0; i < 6; ++i) requests.push_back(world.iall_gather(outs[i], ins[i]));
    for (std::size_t i = 6; i-- > 0;) requests[i].wait();
    for (std::size_t i = 0; i < 6; ++i) {
      auto const out = on_host(outs[i]);
      for (int rank = 0; rank < ranks; ++rank) {
        auto const part = out.bytes().subspan(as_size(rank * size), as_size(size));
        EXPECT_TRUE(std::ranges::equal(part, pattern(part.size(), rank * 10 + static_cast<int>(i))))
            << "operation " << i << " rank " << rank;
      }
    }
  }
}

/// The sequence of collectives is kept by the group, once for all backends.
void a_second_collective_is_refused_until_the_first_has_ended(ConformanceRank& self) {
  auto& world = self.world;
  if (world.backend() == "fake") return;  // its collectives end when they are posted
  auto& transport = *world.transport();
  auto const first = transport.post_barrier({.op_kind = OpKind::barrier});
  error_of<UsageError>([&] { static_cast<void>(transport.post_barrier({.op_kind = OpKind::barrier})); });
  transport.wait(first, world.timeout_policy());
  transport.wait(transport.post_barrier({.op_kind = OpKind::barrier}), world.timeout_policy());
}

void a_source_may_be_written_once_its_operation_has_ended(ConformanceRank& self) {
  auto& world = self.world;
  std::vector<std::uint64_t> values(3000);
  for (std::uint64_t round = 0; round < 30; ++round) {
    for (auto& value : values) value = round + static_cast<std::uint64_t>(world.rank());
    auto tensor = Tensor::from_blob(values.data(), {3000}, Dtype::u64);
    auto out = Tensor::zeros({world.world_size(), 3000}, Dtype::u64);
    world.all_gather(out, tensor);
    std::ranges::fill(values, 999'999);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      auto const part = out.narrow(0, rank, 1).as<std::uint64_t>();
      ASSERT_TRUE(std::ranges::all_of(part, [&](auto v) { return v == round + static_cast<std::uint64_t>(rank); }))
          << "round " << round;
    }
  }
}

void all_reduce_combines_in_rank_order(ConformanceRank& self) {
  auto& world = self.world;
  auto const ranks = world.world_size();
  auto const reduced = [&](auto value, ReduceOp op) {
    std::vector<decltype(value)> one{value};
    world.all_reduce(std::span(one), op);
    return one.front();
  };
  auto const r = world.rank();
  EXPECT_EQ(reduced(std::int64_t{r} - 1, ReduceOp::sum), ranks * (ranks - 1) / 2 - ranks);
  EXPECT_EQ(reduced(std::int32_t{-r}, ReduceOp::min), 1 - ranks);
  EXPECT_EQ(reduced(std::uint8_t(r + 1), ReduceOp::max), ranks);
  EXPECT_EQ(reduced(std::uint16_t{2}, ReduceOp::prod), 1U << static_cast<unsigned>(ranks));
  EXPECT_EQ(reduced(std::uint32_t{1} << r, ReduceOp::bor), (1U << ranks) - 1);
  EXPECT_EQ(reduced(~(std::uint32_t{1} << r), ReduceOp::band), ~((1U << ranks) - 1));
  EXPECT_EQ(reduced(std::uint8_t{1}, ReduceOp::bxor), ranks % 2);
  EXPECT_EQ(reduced(static_cast<float>(r), ReduceOp::avg), static_cast<float>(ranks - 1) / 2);
  EXPECT_TRUE(std::isnan(reduced(r == 0 ? std::nan("") : 1.0, ReduceOp::max)));
  EXPECT_TRUE(std::isnan(reduced(r == ranks - 1 ? std::nan("") : 1.0, ReduceOp::min)));
  std::vector<double> many(5000, 0.1 * (r + 1));
  double expected = 0.1;
  for (int rank = 1; rank < ranks; ++rank) expected += 0.1 * (rank + 1);
  world.all_reduce(std::span(many));
  EXPECT_TRUE(std::ranges::all_of(many, [&](double v) { return v == expected; }));
}

constexpr ConformanceCase data_list[] = {
    {"no_rank_passes_a_barrier_alone", no_rank_passes_a_barrier_alone, 2},
    {"broadcast_gives_all_the_roots_bytes", broadcast_gives_all_the_roots_bytes, 1, false, OnDevices::yes},
    {"all_gather_joins_in_rank_order", all_gather_joins_in_rank_order, 1, false, OnDevices::yes},
    {"all_gatherv_takes_any_sizes", all_gatherv_takes_any_sizes},
    {"all_gather_works_in_place", all_gather_works_in_place},
    {"test_completes_an_operation_without_wait", test_completes_an_operation_without_wait},
    {"operations_started_ahead_keep_their_data", operations_started_ahead_keep_their_data, 1, false, OnDevices::yes},
    {"a_second_collective_is_refused_until_the_first_has_ended",
     a_second_collective_is_refused_until_the_first_has_ended},
    {"a_source_may_be_written_once_its_operation_has_ended", a_source_may_be_written_once_its_operation_has_ended},
    {"all_reduce_combines_in_rank_order", all_reduce_combines_in_rank_order},
};

}  // namespace

std::span<ConformanceCase const> data_cases() { return data_list; }

}  // namespace crossrank::test
