#include <algorithm>
#include <numeric>

#include <crossrank/objects.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Ranks that make different calls, abort, or pass invalid arguments.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

/// Rank 0 makes one call and the others another. All get the same error, which names both calls and ends the group.
template <class One, class Other>
ErrorInfo disagree(Collective const& world, One one, Other other) {
  auto info = error_of<MismatchError>([&] {
    if (world.rank() == 0) {
      one();
    } else {
      other();
    }
  });
  EXPECT_FALSE(info.group_usable);
  EXPECT_FALSE(info.failed_ranks.empty());
  EXPECT_EQ(info.group, "world");
  EXPECT_EQ(info.world_size, world.world_size());
  EXPECT_THAT(info.message, HasSubstr("rank 0 calls "));
  EXPECT_THAT(info.message,
              HasSubstr(world.world_size() == 2 ? "rank 1 calls "
                                                : "ranks 1-" + std::to_string(world.world_size() - 1) + " call"));
  auto const later = error_of<MismatchError>([&] { world.barrier(); });
  EXPECT_EQ(later.message, info.message);
  return info;
}

void another_operation_is_a_mismatch_on_all(ConformanceRank& self) {
  auto tensor = on_device(Tensor::zeros({4}, Dtype::f32));
  auto const info = disagree(
      self.world, [&] { self.world.barrier(); }, [&] { self.world.broadcast(tensor); });
  EXPECT_THAT(info.message, HasSubstr("barrier"));
  EXPECT_THAT(info.message, HasSubstr("broadcast"));
}

void another_root_is_a_mismatch_on_all(ConformanceRank& self) {
  auto tensor = on_device(Tensor::zeros({4}, Dtype::f32));
  disagree(
      self.world, [&] { self.world.broadcast(tensor, {0}); }, [&] { self.world.broadcast(tensor, {1}); });
}

/// No rank waits for objects that go to another rank, and no rank's call takes part in a different one.
void another_root_or_operation_of_objects_is_a_mismatch_on_all(ConformanceRank& self) {
  auto& world = self.world;
  auto const part = [&] {
    std::vector<int> ranks(as_size(world.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return world.split({ranks});
  };
  std::string const large(100'000, 'x');
  auto const group = part();
  auto const roots =
      error_of<MismatchError>([&] { static_cast<void>(group.gather_objects(large, {world.rank() == 0 ? 0 : 1})); });
  EXPECT_THAT(roots.message, HasSubstr("rank 0 calls "));
  auto const other = part();
  auto const operations = error_of<MismatchError>([&] {
    if (world.rank() == 0) {
      static_cast<void>(other.all_gather_objects(large));
    } else {
      static_cast<void>(other.gather_objects(large));
    }
  });
  EXPECT_THAT(operations.message, HasSubstr("rank 0 calls "));
}

void another_shape_is_a_mismatch_on_all(ConformanceRank& self) {
  auto const ranks = self.world.world_size();
  auto const gather = [&](Shape const& shape) {
    auto const in = on_device(Tensor::zeros(shape, Dtype::f32));
    auto out = on_device(Tensor::zeros({ranks, in.numel()}, Dtype::f32));
    self.world.all_gather(out, in);
  };
  disagree(
      self.world,
      [&] {
        gather({2, 3});
      },
      [&] {
        gather({3, 2});
      });
}

void another_dtype_is_a_mismatch_on_all(ConformanceRank& self) {
  auto a = on_device(Tensor::zeros({4}, Dtype::f32));
  auto b = on_device(Tensor::zeros({4}, Dtype::i32));
  disagree(
      self.world, [&] { self.world.broadcast(a); }, [&] { self.world.broadcast(b); });
}

void another_reduce_op_is_a_mismatch_on_all(ConformanceRank& self) {
  std::vector<float> values(4);
  disagree(
      self.world, [&] { self.world.all_reduce(std::span(values), ReduceOp::sum); },
      [&] { self.world.all_reduce(std::span(values), ReduceOp::max); });
}

void other_lists_to_split_are_a_mismatch_on_all(ConformanceRank& self) {
  std::vector<int> all(as_size(self.world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  disagree(
      self.world,
      [&] {
        static_cast<void>(self.world.split({{0}, {1}}));
      },
      [&] { static_cast<void>(self.world.split(std::vector<std::vector<int>>{all})); });
}

void another_division_is_a_mismatch_on_all(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  std::vector<std::int64_t> rows(n, 2);
  auto const scatter = [&](std::vector<std::int64_t> const& given) {
    auto out = on_device(Tensor::zeros({at_rank(given, world.rank()), 3}, Dtype::f32));
    auto const total = std::accumulate(given.begin(), given.end(), std::int64_t{0});
    auto const in = world.rank() == 0 ? on_device(Tensor::zeros({total, 3}, Dtype::f32)) : Tensor();
    world.scatterv(out, in, {.rows = given});
  };
  auto other = rows;
  other[n - 1] = 5;
  disagree(
      world, [&] { scatter(rows); }, [&] { scatter(other); });
}

void an_exchange_that_does_not_fit_is_a_mismatch_on_all(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  std::vector<std::int64_t> send(n, 4);
  std::vector<std::int64_t> receive(n, 4);
  if (world.rank() == 0) send[1] = 6;  // rank 1 expects 4
  auto const sum = [](auto const& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); };
  auto const in = on_device(Tensor::zeros({sum(send)}, Dtype::i32));
  auto out = on_device(Tensor::zeros({sum(receive)}, Dtype::i32));
  auto const info = error_of<MismatchError>([&] { world.all_to_allv(out, in, {.send = send, .receive = receive}); });
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0, 1));
  EXPECT_EQ(info.expected, "16");
  EXPECT_EQ(info.got, "24");
  world.barrier();
}

void wrong_counts_are_a_mismatch(ConformanceRank& self) {
  auto& world = self.world;
  auto const ranks = as_size(world.world_size());
  auto& transport = *world.transport();
  std::vector<std::byte> mine(world.rank() == 0 ? 20 : 10);
  std::vector<std::size_t> counts(ranks, 10);
  if (world.rank() == 0) counts[0] = 20;
  std::vector<std::byte> out(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  auto const gather = [&] {
    transport.wait(transport.post_all_gatherv({spi::OpKind::all_gatherv, 3}, {.bytes = mine}, counts, {.bytes = out}),
                   world.timeout_policy());
  };
  if (world.rank() == 0) {
    gather();
  } else {
    auto const info = error_of<MismatchError>(gather);
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0));
    EXPECT_EQ(info.expected, "10");
    EXPECT_EQ(info.got, "20");
  }
}

void an_abort_reaches_all_with_its_reason(ConformanceRank& self) {
  auto& world = self.world;
  int const last = world.world_size() - 1;
  if (world.rank() == last) {
    world.abort("the disk is on fire");
  }
  for (int i = 0; i < 2; ++i) {
    auto const info = error_of<PeerLostError>([&] { world.barrier(); });
    EXPECT_THAT(info.message, HasSubstr("the disk is on fire"));
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(last));
    EXPECT_FALSE(info.group_usable);
  }
  auto token = Tensor::scalar<std::uint8_t>(1);
  if (world.world_size() > 1 && world.rank() != last) error_of<PeerLostError>([&] { world.send(token, last); });
  if (world.world_size() > 1 && world.rank() == last) error_of<PeerLostError>([&] { world.recv(token, 0); });
  error_of<PeerLostError>([&] { static_cast<void>(world.split_by(0)); });
  error_of<PeerLostError>([&] { world.close(); });
  world.close();  // closing a failed group does nothing
}

/// A transport reports a mismatch that another transport has found. All ranks get it as their error.
void a_reported_mismatch_is_the_error_of_all(ConformanceRank& self) {
  auto& world = self.world;
  world.barrier();
  if (world.rank() == 0) world.transport()->report_failure(ErrorCode::mismatch, std::vector<int>{1}, "other layouts");
  auto const info = error_of<MismatchError>([&] { world.barrier(); });
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(1));
  EXPECT_THAT(info.message, HasSubstr("other layouts"));
  EXPECT_FALSE(info.hint.empty());
  EXPECT_FALSE(info.group_usable);
}

void a_waiting_receiver_learns_of_an_abort(ConformanceRank& self) {
  auto& world = self.world;
  auto token = Tensor::scalar<std::uint8_t>(1);
  if (world.rank() == 0) {
    world.abort("no message will come");
  } else {
    auto const info = error_of<PeerLostError>([&] { world.recv(token, 0); });
    EXPECT_THAT(info.message, HasSubstr("no message will come"));
  }
}

void a_cancelled_collective_ends_the_group(ConformanceRank& self) {
  auto& world = self.world;
  auto& transport = *world.transport();
  if (world.rank() == 0) transport.cancel(transport.post_barrier({.op_kind = spi::OpKind::barrier}));
  auto const info = error_of<PeerLostError>([&] {
    world.barrier();  // passes if rank 0 arrived last
    world.barrier();
  });
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0));
  EXPECT_THAT(info.message, HasSubstr("cancelled its barrier"));
}

void a_rank_that_drops_its_handle_is_reported(ConformanceRank& self) {
  auto const rank = self.world.rank();
  if (rank == 0) {
    self.world = Collective();
    return;
  }
  auto const info = error_of<PeerLostError>([&] { self.world.barrier(); });
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0));
  // The rank may still be alive, so the error says what it did.
  EXPECT_THAT(info.message, testing::AnyOf(HasSubstr("without close()"), HasSubstr("without closing")));
}

void invalid_arguments_are_refused_before_anything_is_sent(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  auto tensor = Tensor::zeros({2}, Dtype::i32);
  Tensor none;
  EXPECT_EQ(error_of<UsageError>([&] { world.broadcast(tensor, {n}); }).got, std::to_string(n));
  error_of<UsageError>([&] { world.broadcast(tensor, {-1}); });
  error_of<UsageError>([&] { world.broadcast(none); });
  error_of<UsageError>([&] { world.send(tensor, n); });
  error_of<UsageError>([&] { world.recv(tensor, -1); });
  if (n > 1) error_of<UsageError>([&] { world.send(tensor, world.rank()); });
  if (n > 1) error_of<UsageError>([&] { world.recv(tensor, world.rank()); });
  auto small = Tensor::zeros({1}, Dtype::i32);
  EXPECT_THAT(error_of<UsageError>([&] { world.all_gather(small, tensor); }).got, HasSubstr("[1]"));
  error_of<UsageError>([&] { world.all_reduce(tensor, ReduceOp::avg); });
  auto scale = Tensor::zeros({2}, Dtype::f8_e8m0);
  EXPECT_EQ(error_of<UsageError>([&] { world.all_reduce(scale); }).got, "F8_E8M0 with sum");
  auto half = Tensor::zeros({2}, Dtype::f16);
  EXPECT_THAT(error_of<UsageError>([&] { world.all_reduce(half, ReduceOp::band); }).expected, HasSubstr("BF16"));
  error_of<UsageError>([&] { static_cast<void>(world.split({{0}, {n}})); });
  EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(world.split({{0}, {0}})); }).message, HasSubstr("rank 0"));
  world.barrier();
}

/// A message needs its whole size at once. This one exceeds the cap of the suite, 64 MiB, so the sender gets an error.
void a_message_that_does_not_fit_is_refused(ConformanceRank& self) {
  auto& world = self.world;
  if (world.backend() != "shm") return;  // only shm keeps messages in an arena with a cap
  auto tensor = Tensor::empty({80 << 20}, Dtype::u8);
  if (world.rank() == 0) {
    auto const info = error_of<UnavailableError>([&] { world.send(tensor, 1); });
    EXPECT_THAT(info.message, HasSubstr(std::to_string(64 << 20)));
  }
  world.barrier();
}

constexpr ConformanceCase disagreement_list[] = {
    {"another_operation_is_a_mismatch_on_all", another_operation_is_a_mismatch_on_all, 2, true, OnDevices::compared},
    {"another_root_is_a_mismatch_on_all", another_root_is_a_mismatch_on_all, 2, true, OnDevices::compared},
    {"another_root_or_operation_of_objects_is_a_mismatch_on_all",
     another_root_or_operation_of_objects_is_a_mismatch_on_all, 2},
    {"another_shape_is_a_mismatch_on_all", another_shape_is_a_mismatch_on_all, 2, true, OnDevices::compared},
    {"another_dtype_is_a_mismatch_on_all", another_dtype_is_a_mismatch_on_all, 2, true, OnDevices::compared},
    {"another_reduce_op_is_a_mismatch_on_all", another_reduce_op_is_a_mismatch_on_all, 2, true},
    {"other_lists_to_split_are_a_mismatch_on_all", other_lists_to_split_are_a_mismatch_on_all, 2, true},
    {"wrong_counts_are_a_mismatch", wrong_counts_are_a_mismatch, 2},
    {"an_abort_reaches_all_with_its_reason", an_abort_reaches_all_with_its_reason, 1, true},
    {"a_reported_mismatch_is_the_error_of_all", a_reported_mismatch_is_the_error_of_all, 2, true},
    {"a_waiting_receiver_learns_of_an_abort", a_waiting_receiver_learns_of_an_abort, 2, true},
    {"a_cancelled_collective_ends_the_group", a_cancelled_collective_ends_the_group, 2, true},
    {"a_rank_that_drops_its_handle_is_reported", a_rank_that_drops_its_handle_is_reported, 2, true},
    {"invalid_arguments_are_refused_before_anything_is_sent", invalid_arguments_are_refused_before_anything_is_sent},
    {"a_message_that_does_not_fit_is_refused", a_message_that_does_not_fit_is_refused, 2},
    {"another_division_is_a_mismatch_on_all", another_division_is_a_mismatch_on_all, 2, true, OnDevices::compared},
    {"an_exchange_that_does_not_fit_is_a_mismatch_on_all", an_exchange_that_does_not_fit_is_a_mismatch_on_all, 2, false,
     OnDevices::compared},
};

}  // namespace

std::span<ConformanceCase const> disagreement_cases() { return disagreement_list; }

}  // namespace crossrank::test
