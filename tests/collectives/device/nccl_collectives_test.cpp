#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/tensor/concat.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/emulated_driver.hpp"

/// Collectives on GPU tensors that NCCL carries, between processes.
namespace crossrank::test {
namespace {

class NcclCollectives : public testing::TestWithParam<int> {
 protected:
  static void run(std::string_view scenario, EmulatedNccl version = EmulatedNccl::newest) {
    expect_job_ok(GetParam(), scenario, gpu_ranks(version));
  }
};

// ---------------------------------------------------------------- data

void reduce_and_move(Collective const& world) {
  auto const ranks = as_size(world.world_size());
  auto const gpu = default_device();
  auto const sum = static_cast<float>(ranks * (ranks + 1)) / 2;
  auto reduced = filled(world, 1'000);
  world.all_reduce(reduced);
  EXPECT_EQ(world.device_backend(), "nccl");
  EXPECT_EQ(values(reduced), std::vector<float>(1'000, sum));
  std::vector<Tensor> several{filled(world, 2), filled(world, 3)};
  world.iall_reduce(std::span<Tensor>(several)).wait();
  for (auto const& tensor : several) EXPECT_THAT(values(tensor), testing::Each(sum));
  auto averaged = filled(world, 3);
  world.all_reduce(averaged, ReduceOp::avg);
  EXPECT_EQ(values(averaged), std::vector<float>(3, sum / static_cast<float>(ranks)));
  int const root = world.world_size() - 1;
  auto at_root = filled(world, 3);
  world.reduce(at_root, ReduceOp::sum, {root});
  EXPECT_EQ(values(at_root), std::vector<float>(3, world.rank() == root ? sum : static_cast<float>(world.rank() + 1)));
  auto sent = filled(world, 5);
  world.broadcast(sent, {root});
  EXPECT_EQ(values(sent), std::vector<float>(5, static_cast<float>(ranks)));
  expect_exchanges(world, gpu);
  auto gathered = world.rank() == root ? Tensor::empty({world.world_size(), 3}, Dtype::f32, gpu) : Tensor{};
  world.gather(gathered, filled(world, 3), {root});
  auto own = Tensor::empty({3}, Dtype::f32, gpu);
  world.scatter(own, gathered, {root});
  EXPECT_EQ(values(own), std::vector<float>(3, static_cast<float>(world.rank() + 1)));
}

/// Rank r has r rows.
void move_different_counts(Collective const& world) {
  auto const gpu = default_device();
  auto const n = world.world_size();
  int const root = n - 1;
  auto rows = per_rank<std::int64_t>(n);
  std::iota(rows.begin(), rows.end(), 0);
  auto const total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  std::vector<float> expected;
  for (int r = 0; r < n; ++r) expected.insert(expected.end(), as_size(r), static_cast<float>(r + 1));
  auto const own = [&] { return std::vector<float>(as_size(world.rank()), static_cast<float>(world.rank() + 1)); };
  auto all = Tensor::empty({total}, Dtype::f32, gpu);
  world.all_gatherv(all, filled(world, world.rank()), {.rows = rows});
  EXPECT_EQ(values(all), expected);
  auto joined = world.rank() == root ? Tensor::empty({total}, Dtype::f32, gpu) : Tensor{};
  world.gatherv(joined, filled(world, world.rank()), {.rows = rows, .root = root});
  auto back = Tensor::empty({world.rank()}, Dtype::f32, gpu);
  world.scatterv(back, joined, {.rows = rows, .root = root});
  EXPECT_EQ(values(back), own());
  auto part = Tensor::empty({world.rank()}, Dtype::f32, gpu);
  world.reduce_scatterv(part, filled(world, total), {.rows = rows});
  EXPECT_EQ(values(part), std::vector<float>(as_size(world.rank()), static_cast<float>(n * (n + 1)) / 2));
  // Rank s sends r rows to rank r.
  std::vector<std::int64_t> const receive(as_size(n), world.rank());
  auto exchanged = Tensor::empty({n * world.rank()}, Dtype::f32, gpu);
  world.all_to_allv(exchanged, filled(world, total), {.send = rows, .receive = receive});
  std::vector<float> from_each;
  for (int s = 0; s < n; ++s) from_each.insert(from_each.end(), as_size(world.rank()), static_cast<float>(s + 1));
  EXPECT_EQ(values(exchanged), from_each);
}

CROSSRANK_RANK_SCENARIO(nccl_data) {
  auto world = connect_gpu_rank();
  reduce_and_move(world);
  move_different_counts(world);
  EXPECT_EQ(world.device_backend(), "nccl");
  world.close();
  return end_gpu_rank();
}

TEST_P(NcclCollectives, reduce_and_move_gpu_tensors) { run("nccl_data"); }
TEST_P(NcclCollectives, work_with_a_library_that_lacks_the_newer_functions) { run("nccl_data", EmulatedNccl::v2_18); }

CROSSRANK_RANK_SCENARIO(nccl_other_dtypes) {
  auto const world = connect_gpu_rank();
  auto const gpu = default_device();
  auto flag = Tensor::of<std::uint16_t>({static_cast<std::uint16_t>(world.rank())}, {1}).to(gpu);
  world.all_reduce(flag, ReduceOp::max);  // NCCL has no such dtype
  EXPECT_EQ(flag.to(Device::cpu()).as<std::uint16_t>()[0], world.world_size() - 1);
  auto bits = Tensor::of<std::uint32_t>({1U << static_cast<unsigned>(world.rank())}, {1}).to(gpu);
  world.all_reduce(bits, ReduceOp::bor);  // nor such an op
  EXPECT_EQ(bits.to(Device::cpu()).as<std::uint32_t>()[0], (1U << static_cast<unsigned>(world.world_size())) - 1);
  EXPECT_EQ(emulated_count("cuLaunchKernel"), 2U);
  auto integers = Tensor::of<std::int64_t>({world.rank() + 1}, {1}).to(gpu);
  world.all_reduce(integers, ReduceOp::prod);
  EXPECT_EQ(world.device_backend(), "nccl");
  auto moved = Tensor::of<std::uint16_t>({static_cast<std::uint16_t>(7 + world.rank())}, {1}).to(gpu);
  reset_emulated_counts();
  world.broadcast(moved);
  EXPECT_EQ(emulated_count("ncclBroadcast"), 1U);
  EXPECT_EQ(moved.to(Device::cpu()).as<std::uint16_t>()[0], 7);
  return end_gpu_rank();
}

TEST_P(NcclCollectives, reduce_what_nccl_lacks_by_a_kernel) { run("nccl_other_dtypes"); }

/// One rank after the other has a NaN. NCCL would lose it.
CROSSRANK_RANK_SCENARIO(nccl_nan) {
  auto const world = connect_gpu_rank();
  auto const gpu = default_device();
  auto first = filled(world, 4);
  world.all_reduce(first);
  EXPECT_EQ(world.device_backend(), "nccl");
  reset_emulated_counts();
  auto const n = world.world_size();
  for (int with_nan = 0; with_nan < n; ++with_nan) {
    auto const nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> const mine{world.rank() == with_nan ? nan : 1.0, 2.0};
    auto const make = [&] { return Tensor::of(mine, {2}).to(gpu); };
    auto const expect_nan = [&](Tensor const& tensor, char const* call) {
      auto const host = tensor.to(Device::cpu());
      EXPECT_TRUE(std::isnan(host.as<double>()[0])) << call << ", NaN of rank " << with_nan;
      EXPECT_EQ(host.as<double>()[1], 2.0) << call << ", NaN of rank " << with_nan;
    };
    for (auto const op : {ReduceOp::min, ReduceOp::max}) {
      auto reduced = make();
      world.all_reduce(reduced, op);
      expect_nan(reduced, "all_reduce");
      std::vector<Tensor> several{make(), make()};
      world.iall_reduce(std::span<Tensor>(several), op).wait();
      for (auto const& tensor : several) expect_nan(tensor, "fused all_reduce");
      auto at_root = make();
      world.reduce(at_root, op, {0});
      if (world.rank() == 0) expect_nan(at_root, "reduce");
      auto part = Tensor::empty({1, 2}, Dtype::f64, gpu);
      auto const rows = concat(per_rank<Tensor>(n, make().reshape({1, 2})), {.dim = 0});
      world.reduce_scatter(part, rows, op);
      expect_nan(part, "reduce_scatter");
    }
  }
  for (auto const* call : {"ncclAllReduce", "ncclReduce", "ncclReduceScatter"}) EXPECT_EQ(emulated_count(call), 0U);
  auto integers = Tensor::of<std::int32_t>({world.rank()}, {1}).to(gpu);
  world.all_reduce(integers, ReduceOp::max);
  EXPECT_EQ(emulated_count("ncclAllReduce"), 1U) << "integers have no NaN";
  return end_gpu_rank();
}

TEST_P(NcclCollectives, keep_nan_in_min_and_max) { run("nccl_nan"); }

CROSSRANK_RANK_SCENARIO(nccl_requests) {
  auto const world = connect_gpu_rank();
  auto const ranks = world.world_size();
  auto first = filled(world, 100);
  auto second = filled(world, 7);
  auto third = filled(world, 5);
  auto one = world.iall_reduce(first);
  auto two = world.iall_reduce(second, ReduceOp::avg);
  auto three = world.iall_reduce(third, ReduceOp::max);  // in rank order
  auto const other = Stream::create(default_device());
  StreamGuard const guard(other);
  one.wait();
  two.wait();
  three.wait();
  EXPECT_EQ(values(first), std::vector<float>(100, static_cast<float>(ranks * (ranks + 1)) / 2));
  EXPECT_EQ(values(second), std::vector<float>(7, static_cast<float>(ranks + 1) / 2));
  EXPECT_EQ(values(third), std::vector<float>(5, static_cast<float>(ranks)));
  int const src = (world.rank() + ranks - 1) % ranks;
  auto in = Tensor::empty({6}, Dtype::f32, default_device());
  world.sendrecv(in, filled(world, 6), {.dst = (world.rank() + 1) % ranks, .src = src});
  EXPECT_EQ(values(in), std::vector<float>(6, static_cast<float>(src + 1)));
  return end_gpu_rank();
}

TEST_P(NcclCollectives, non_blocking_calls_order_the_current_stream) { run("nccl_requests"); }

/// The stream that waits for a request waits for the GPU too, which has the call on another stream.
CROSSRANK_RANK_SCENARIO(nccl_request_of_a_held_stream) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 100);
  world.all_reduce(tensor);
  auto copy = Tensor::zeros(tensor.shape(), Dtype::f32, default_device());
  current_stream(default_device()).synchronize();
  auto const of_the_call = Stream::create(default_device());
  std::optional<HeldStream> held;
  if (self.rank == 0) held.emplace(of_the_call.native());
  auto request = [&] {
    StreamGuard const guard(of_the_call);
    return world.iall_reduce(tensor);
  }();
  auto const waiting = Stream::create(default_device());
  StreamGuard const guard(waiting);
  request.wait();
  copy.copy_from(tensor);
  auto const copied = waiting.record();
  for (int look = 0; look < 1'000 && !copied.query(); ++look) std::this_thread::yield();
  if (self.rank == 0) {
    EXPECT_FALSE(copied.query());
  }
  held.reset();
  EXPECT_EQ(values(copy), std::vector<float>(100, 6));
  return end_gpu_rank();
}

TEST(NcclRequest, lets_the_waiting_stream_wait_for_the_gpu) { expect_job_ok(2, "nccl_request_of_a_held_stream"); }

/// NCCL 2.22 crashes when a thread uses the communicator of another group before it has completed its last call.
CROSSRANK_RANK_SCENARIO(nccl_two_groups_of_a_thread) {
  auto const world = connect_gpu_rank();
  auto const pair = world.split({{0, 1}});
  for (int round = 0; round < 3; ++round) {
    auto tensor = filled(world, 4);
    world.all_reduce(tensor);
    pair.all_reduce(tensor);
    EXPECT_EQ(values(tensor), std::vector<float>(4, 6));
  }
  EXPECT_EQ(pair.device_backend(), "nccl");
  return end_gpu_rank();
}

TEST(NcclGroups, take_turns_on_a_thread_with_a_library_that_keeps_jobs) {
  auto options = gpu_ranks(EmulatedNccl::v2_22);
  options.environment["EMULATED_NCCL_IN_PROGRESS"] = "always";
  expect_job_ok(2, "nccl_two_groups_of_a_thread", std::move(options));
}

// ---------------------------------------------------------------- costs

CROSSRANK_RANK_SCENARIO(nccl_counts) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  reset_emulated_counts();
  for (int i = 0; i < 10; ++i) world.all_reduce(tensor);
  EXPECT_EQ(emulated_count("ncclAllReduce"), 10U);
  EXPECT_EQ(emulated_count("nccl_kernel"), 10U);
  EXPECT_EQ(emulated_count("ncclGroupStart"), 0U);
  for (auto const* call : {"host_wait", "pageable_copy", "copy", "cuStreamSynchronize", "cuCtxSynchronize",
                           "cuEventSynchronize", "cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemHostAlloc"}) {
    EXPECT_EQ(emulated_count(call), 0U) << call;
  }
  std::vector<std::int64_t> rows(as_size(world.world_size()), 2);
  rows.back() = 3;
  auto all = Tensor::empty({std::accumulate(rows.begin(), rows.end(), std::int64_t{0})}, Dtype::f32, default_device());
  auto const own = filled(world, at_rank(rows, world.rank()));
  reset_emulated_counts();
  world.all_gatherv(all, own, {.rows = rows});
  EXPECT_EQ(emulated_count("nccl_kernel"), 1U);  // one group
  EXPECT_EQ(emulated_count("host_wait"), 0U);
  current_stream(default_device()).synchronize();
  return end_gpu_rank();
}

TEST_P(NcclCollectives, take_one_call_of_nccl_and_no_wait_of_the_host) { run("nccl_counts"); }

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCollectives, testing::Values(1, 2, 4));

// ---------------------------------------------------------------- the vendor's handle

CROSSRANK_RANK_SCENARIO(nccl_handle) {
  auto world = connect_gpu_rank();
  EXPECT_FALSE(nccl::process_group(world).has_value());
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  auto const group = nccl::process_group(world);
  EXPECT_TRUE(group.has_value());
  if (!group) return 1;
  EXPECT_EQ(group->vendor, "nccl");
  auto* const library = ::dlopen(CROSSRANK_TEST_NCCL, RTLD_NOW | RTLD_LOCAL);
  auto* const count_of = reinterpret_cast<int (*)(ncclComm*, int*)>(::dlsym(library, "ncclCommCount"));
  int count = 0;
  EXPECT_EQ(count_of(nccl::communicator_of(*group), &count), 0);
  EXPECT_EQ(count, world.world_size());
  // Parts of the job have communicators of their own.
  auto const part = world.split({{2, 0}, {1}});
  EXPECT_FALSE(nccl::process_group(part).has_value());
  part.all_reduce(tensor);
  auto const of_part = nccl::process_group(part);
  EXPECT_TRUE(of_part.has_value());
  if (!of_part) return 1;
  EXPECT_NE(nccl::communicator_of(*of_part), nccl::communicator_of(*group));
  auto* const rank_of = reinterpret_cast<int (*)(ncclComm*, int*)>(::dlsym(library, "ncclCommUserRank"));
  int rank = -1;
  EXPECT_EQ(count_of(nccl::communicator_of(*of_part), &count), 0);
  EXPECT_EQ(rank_of(nccl::communicator_of(*of_part), &rank), 0);
  EXPECT_EQ(count, part.world_size());
  EXPECT_EQ(rank, part.rank());
  EXPECT_THROW(static_cast<void>(nccl::communicator_of({.vendor = "mpi"})), UsageError);
  EXPECT_EQ(nccl::library_info().version, 22809);
  return end_gpu_rank();
}

TEST(NcclHandle, is_the_communicator_of_the_group) { expect_job_ok(3, "nccl_handle"); }

// ---------------------------------------------------------------- disagreement

/// Runs a call on which the ranks disagree, as the first one of the group or after another one, and expects one error
/// on all of them. The rank that makes it first enqueues it, so that its error comes when it waits for the GPU.
/// Arguments: "first" or "later", and the check level.
template <class Call>
void expect_mismatch(RankSelf const& self, Call call) {
  bool const waits = self.arguments.at(1) == "collective";
  auto const world = waits ? connect_comparing_gpu_rank() : connect_gpu_rank();
  if (self.arguments.at(0) == "later") {
    auto tensor = filled(world, 4);
    world.all_reduce(tensor);
    EXPECT_EQ(world.device_backend(), "nccl");
  }
  auto const info = error_of<MismatchError>([&] {
    call(world);
    EXPECT_FALSE(waits) << "the call throws on all ranks";
    current_stream(default_device()).synchronize();
  });
  EXPECT_FALSE(info.failed_ranks.empty());
  if (info.group_usable) return;  // the ranks have compared the counts of an exchange before they enqueue it
  EXPECT_FALSE(info.hint.empty());
  auto again = filled(world, 4);
  EXPECT_THROW(world.all_reduce(again), MismatchError) << "the group stays unusable";
  auto on_cpu = Tensor::zeros({4}, Dtype::f32);
  EXPECT_THROW(world.all_reduce(on_cpu), MismatchError);
}

CROSSRANK_RANK_SCENARIO(nccl_unequal_counts) {
  expect_mismatch(self, [](Collective const& world) {
    auto tensor = filled(world, 4 + world.rank());
    world.all_reduce(tensor);
  });
  return end_gpu_rank();
}
CROSSRANK_RANK_SCENARIO(nccl_and_cpu) {
  expect_mismatch(self, [](Collective const& world) {
    auto tensor = world.rank() == 0 ? filled(world, 4) : Tensor::zeros({4}, Dtype::f32);
    world.all_reduce(tensor);
  });
  return end_gpu_rank();
}
CROSSRANK_RANK_SCENARIO(nccl_unequal_exchange) {
  expect_mismatch(self, [](Collective const& world) {
    auto const rank = world.rank();
    std::vector<std::int64_t> const send{1, 2};
    std::vector<std::int64_t> const receive{rank == 0 ? 1 : 2, rank == 0 ? 2 : 2};
    auto out = Tensor::empty({receive[0] + receive[1]}, Dtype::f32, default_device());
    world.all_to_allv(out, filled(world, 3), {.send = send, .receive = receive});
  });
  return end_gpu_rank();
}

class NcclDisagreement : public testing::TestWithParam<std::tuple<char const*, char const*, char const*>> {};

TEST_P(NcclDisagreement, is_a_mismatch_on_all_ranks) {
  auto options = gpu_ranks();
  options.arguments = {std::get<1>(GetParam()), std::get<2>(GetParam())};
  expect_job_ok(2, std::get<0>(GetParam()), std::move(options));
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclDisagreement,
                         testing::Combine(testing::Values("nccl_unequal_counts", "nccl_and_cpu",
                                                          "nccl_unequal_exchange"),
                                          testing::Values("first", "later"), testing::Values("local", "collective")));

}  // namespace
}  // namespace crossrank::test
