#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/dlpack.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/device/gpu_tensors.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/thread_ranks.hpp"

/// Collectives on GPU tensors of the emulated driver, which has two GPUs.
namespace crossrank::test {
namespace {

constexpr Device gpu = Device::cuda(0);

void run_gpu_ranks(int ranks, std::function<void(Collective const&)> const& body) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  run_thread_ranks(ranks, body);
}

/// Returns a tensor on the first GPU whose elements on rank r are r + 1.
Tensor filled(Collective const& world, std::int64_t count) { return test::filled(world, count, gpu); }

class StagedCollectives : public testing::TestWithParam<int> {};

TEST_P(StagedCollectives, reduce_and_move_gpu_tensors) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto const ranks = as_size(world.world_size());
    auto const sum = static_cast<float>(ranks * (ranks + 1)) / 2;
    auto reduced = filled(world, 1'000);
    world.all_reduce(reduced);
    EXPECT_EQ(values(reduced), std::vector<float>(1'000, sum));
    auto sent = filled(world, 5);
    world.broadcast(sent);
    EXPECT_EQ(values(sent), std::vector<float>(5, 1));
    expect_exchanges(world, gpu);
  });
}

TEST_P(StagedCollectives, move_rows_to_and_from_a_root) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto const n = world.world_size();
    int const root = n - 1;
    bool const is_root = world.rank() == root;
    auto joined = is_root ? Tensor::empty({n, 3}, Dtype::f32, gpu) : Tensor{};
    world.gather(joined, filled(world, 3), {root});
    auto own = Tensor::empty({3}, Dtype::f32, gpu);
    world.scatter(own, joined, {root});
    EXPECT_EQ(values(own), std::vector<float>(3, static_cast<float>(world.rank() + 1)));
    auto reduced = filled(world, 5);
    world.reduce(reduced, ReduceOp::sum, {root});
    if (is_root) {
      EXPECT_EQ(values(reduced), std::vector<float>(5, static_cast<float>(n * (n + 1)) / 2));
    }
    auto rows = per_rank<std::int64_t>(n);
    std::iota(rows.begin(), rows.end(), 0);  // rank 0 has none
    auto const total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    auto all = Tensor::empty({total}, Dtype::f32, gpu);
    world.all_gatherv(all, filled(world, world.rank()), {.rows = rows});
    std::vector<float> expected;
    for (int r = 0; r < n; ++r) expected.insert(expected.end(), as_size(r), static_cast<float>(r + 1));
    EXPECT_EQ(values(all), expected);
  });
}

TEST_P(StagedCollectives, reduce_tensors_longer_than_a_piece) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto const ranks = world.world_size();
    auto tensor = filled(world, (9 << 20) / 4);
    world.all_reduce(tensor);
    EXPECT_THAT(values(tensor), testing::Each(static_cast<float>(ranks * (ranks + 1)) / 2));
  });
}

/// Returns a tensor in host memory whose elements differ from each other and from those of other ranks.
Tensor numbered(Collective const& world, std::int64_t count) {
  std::vector<std::int32_t> numbers(as_size(count));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::int32_t>(i * 7) + world.rank() * 100'000'003;
  return Tensor::of(numbers, {count});
}

/// Expects the same result of a call on GPU tensors as on tensors in host memory. The counts are of elements.
void expect_same_on_gpu(Collective const& world, std::int64_t in_count, std::int64_t out_count,
                        std::function<void(Tensor& out, Tensor const& in)> const& call) {
  auto const in = numbered(world, in_count);
  auto expected = Tensor::zeros({out_count}, Dtype::i32);
  call(expected, in);
  auto const in_on_gpu = in.to(gpu);
  auto out = Tensor::zeros({out_count}, Dtype::i32, gpu);
  call(out, in_on_gpu);
  auto const found = out.to(Device::cpu());
  EXPECT_TRUE(std::ranges::equal(found.bytes(), expected.bytes()))
      << in_count << " elements in, " << out_count << " elements out";
}

/// Parts of ranks that are a little longer than some pieces, and of different length.
TEST_P(StagedCollectives, move_parts_longer_than_a_piece) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    std::int64_t const n = world.world_size();
    int const root = world.world_size() - 1;
    bool const is_root = world.rank() == root;
    auto const at_root = [&](std::int64_t count) { return is_root ? count : 0; };
    for (std::int64_t const part : {(std::int64_t{4} << 20) / 4 / n, (std::int64_t{9} << 20) / 4 / n + 1}) {
      std::vector<std::int64_t> rows;
      for (std::int64_t r = 0; r < n; ++r) rows.push_back(r % 2 == 0 ? part + r : 3 * r);
      if (n > 2) rows[2] = 0;
      auto const own = at_rank(rows, world.rank());
      auto const total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
      expect_same_on_gpu(world, part, n * part, [&](auto& out, auto const& in) { world.all_gather(out, in); });
      expect_same_on_gpu(world, own, total,
                         [&](auto& out, auto const& in) { world.all_gatherv(out, in, {.rows = rows}); });
      expect_same_on_gpu(world, part, at_root(n * part), [&](auto& out, auto const& in) {
        auto whole = is_root ? out : Tensor{};
        world.gather(whole, in, {root});
      });
      expect_same_on_gpu(world, own, at_root(total), [&](auto& out, auto const& in) {
        auto whole = is_root ? out : Tensor{};
        world.gatherv(whole, in, {.rows = rows, .root = root});
      });
      expect_same_on_gpu(world, at_root(n * part), part,
                         [&](auto& out, auto const& in) { world.scatter(out, is_root ? in : Tensor{}, {root}); });
      expect_same_on_gpu(world, at_root(total), own, [&](auto& out, auto const& in) {
        world.scatterv(out, is_root ? in : Tensor{}, {.rows = rows, .root = root});
      });
      expect_same_on_gpu(world, n * part, part, [&](auto& out, auto const& in) { world.reduce_scatter(out, in); });
      expect_same_on_gpu(world, total, own,
                         [&](auto& out, auto const& in) { world.reduce_scatterv(out, in, {.rows = rows}); });
      expect_same_on_gpu(world, n * part, n * part, [&](auto& out, auto const& in) { world.all_to_all(out, in); });
    }
  });
}

/// The parts of all ranks in the result are written in place, and each piece of them by one copy.
TEST(StagedCollectives, gather_long_parts_in_place_with_one_copy_per_piece) {
  constexpr std::int64_t part = (std::int64_t{6} << 20) / 4;  // three pieces for two ranks
  run_gpu_ranks(2, [](Collective const& world) {
    auto const own = numbered(world, part);
    auto expected = Tensor::zeros({2 * part}, Dtype::i32);
    world.all_gather(expected, own);
    auto whole = Tensor::zeros({2 * part}, Dtype::i32, gpu);
    auto mine = whole.narrow(0, world.rank() * part, part);
    mine.copy_from(own.to(gpu));
    current_stream(gpu).synchronize();
    world.barrier();
    auto const before = calls("cuMemcpy2DAsync_v2");
    world.barrier();
    world.all_gather(whole, mine);
    current_stream(gpu).synchronize();
    world.barrier();
    EXPECT_EQ(calls("cuMemcpy2DAsync_v2") - before, 2U * 3U);
    EXPECT_TRUE(std::ranges::equal(whole.to(Device::cpu()).bytes(), expected.bytes()));
  });
}

TEST_P(StagedCollectives, non_blocking_calls_order_the_current_stream) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto const ranks = world.world_size();
    auto first = filled(world, 100);
    auto second = filled(world, 7);
    auto one = world.iall_reduce(first);
    auto two = world.iall_reduce(second, ReduceOp::max);
    auto const other = Stream::create(gpu);
    StreamGuard const guard(other);
    one.wait();
    two.wait();
    EXPECT_EQ(values(first), std::vector<float>(100, static_cast<float>(ranks * (ranks + 1)) / 2));
    EXPECT_EQ(values(second), std::vector<float>(7, static_cast<float>(ranks)));
  });
}

/// The progress thread leaves calls on GPU tensors to their caller.
TEST(StagedCollectives, end_under_a_progress_thread_when_they_are_polled) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  run_driven_ranks(2, [](Collective const& world) {
    auto reduced = filled(world, 1'000);
    auto request = world.iall_reduce(reduced);
    EXPECT_TRUE(request.wait_for(std::chrono::seconds(60)));
    EXPECT_EQ(values(reduced), std::vector<float>(1'000, 3));
  });
}

TEST_P(StagedCollectives, messages_shift_in_a_circle) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    int const n = world.world_size();
    int const src = (world.rank() + n - 1) % n;
    auto in = Tensor::empty({6}, Dtype::f32, gpu);
    world.sendrecv(in, filled(world, 6), {.dst = (world.rank() + 1) % n, .src = src});
    EXPECT_EQ(values(in), std::vector<float>(6, static_cast<float>(src + 1)));
  });
}

TEST(StagedMessages, go_from_a_gpu_to_a_cpu_and_back) {
  run_gpu_ranks(2, [](Collective const& world) {
    auto tensor = world.rank() == 0 ? filled(world, 4) : Tensor::zeros({4}, Dtype::f32);
    if (world.rank() == 0) {
      world.send(tensor, 1);
      world.recv(tensor, 1);
    } else {
      world.recv(tensor, 0);
      for (auto& value : tensor.as_mutable<float>()) value += 1;
      world.send(tensor, 0);
    }
    EXPECT_EQ(values(tensor), std::vector<float>(4, 2));
  });
}

TEST_P(StagedCollectives, fused_calls_take_tensors_that_do_not_follow_each_other) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto const n = world.world_size();
    auto const ranks = as_size(n);
    auto const sum = static_cast<float>(ranks * (ranks + 1)) / 2;
    auto const empty = Tensor::empty({0}, Dtype::f32, gpu);
    std::vector<Tensor> reduced{filled(world, 2), empty, filled(world, (5 << 20) / 4), filled(world, 3)};
    world.iall_reduce(std::span<Tensor>(reduced)).wait();
    for (auto const& tensor : reduced) EXPECT_THAT(values(tensor), testing::Each(sum));

    std::vector<Tensor> const wholes{filled(world, 2 * n), filled(world, 5 * n)};
    std::vector<Tensor> parts{Tensor::zeros({2}, Dtype::f32, gpu), Tensor::zeros({5}, Dtype::f32, gpu)};
    world.ireduce_scatter(std::span<Tensor>(parts), std::span<Tensor const>(wholes)).wait();
    for (auto const& tensor : parts) EXPECT_THAT(values(tensor), testing::Each(sum));

    std::vector<Tensor> const own{filled(world, 2), filled(world, 5)};
    std::vector<Tensor> all{Tensor::zeros({2 * n}, Dtype::f32, gpu), Tensor::zeros({5 * n}, Dtype::f32, gpu)};
    world.iall_gather(std::span<Tensor>(all), std::span<Tensor const>(own)).wait();
    auto const first = values(all[0]);
    auto const second = values(all[1]);
    for (std::size_t i = 0; i < 2 * ranks; ++i) EXPECT_EQ(first[i], static_cast<float>(i / 2 + 1));
    for (std::size_t i = 0; i < 5 * ranks; ++i) EXPECT_EQ(second[i], static_cast<float>(i / 5 + 1));
  });
}

/// Payloads of ranks that are threads stay on the GPU too. There is no memory of another process then.
TEST(DeviceMessagesOfThreads, go_around_a_ring) {
  run_gpu_ranks(3, [](Collective const& world) {
    int const next = (world.rank() + 1) % world.world_size();
    int const previous = (world.rank() + world.world_size() - 1) % world.world_size();
    for (int i = 0; i < 30; ++i) {
      auto const sent = filled(world, 20'000 + 1'000 * i);
      auto received = Tensor::zeros(sent.shape(), Dtype::f32, gpu);
      world.sendrecv(received, sent, {.dst = next, .src = previous});
      EXPECT_THAT(values(received), testing::Each(static_cast<float>(previous + 1)));
    }
    auto const sent = filled(world, 10'000);
    auto received = filled(world, 10'000);
    current_stream(gpu).synchronize();
    world.barrier();
    auto const before = calls("cuMemcpyDtoDAsync_v2");
    world.sendrecv(received, sent, {.dst = next, .src = previous});
    EXPECT_GE(calls("cuMemcpyDtoDAsync_v2") - before, 2U);
    world.barrier();
  });
}

TEST(StagedCollectives, fused_calls_refuse_tensors_on_two_devices) {
  run_gpu_ranks(2, [](Collective const& world) {
    std::vector<Tensor> tensors{filled(world, 2), Tensor::zeros({3}, Dtype::f32)};
    try {
      world.iall_reduce(std::span<Tensor>(tensors)).wait();
      ADD_FAILURE() << "no error";
    } catch (UsageError const& e) {
      EXPECT_EQ(e.info().expected, "cuda:0");
      EXPECT_EQ(e.info().got, "cpu");
      EXPECT_TRUE(e.group_usable());
    }
    world.all_reduce(tensors[0]);
    EXPECT_EQ(values(tensors[0]), std::vector<float>(2, 3));
  });
}

TEST_P(StagedCollectives, a_dictionary_keeps_the_devices_of_its_tensors) {
  run_gpu_ranks(GetParam(), [](Collective const& world) {
    auto all = all_ranks(world.world_size());
    auto const group = GroupCoordinator::create(world, {all});
    TensorDict dict;
    if (world.rank() == 0) {
      dict.set("gpu", filled(world, 600));
      dict.set("cpu", Tensor::of<float>({1, 2}, {2}));
      dict.set("empty", Tensor::empty({0, 3}, Dtype::f32, gpu));
    }
    dict = group.broadcast_tensor_dict(std::move(dict));
    EXPECT_EQ(dict.at("gpu").tensor()->device().kind, Device::Kind::cuda);
    EXPECT_EQ(dict.at("cpu").tensor()->device(), Device::cpu());
    EXPECT_EQ(dict.at("empty").tensor()->device().kind, Device::Kind::cuda);
    EXPECT_EQ(values(*dict.at("gpu").tensor()), std::vector<float>(600, 1));
    auto const gathered = group.all_gather(filled(world, 2).reshape({1, 2}), {1});
    EXPECT_EQ(gathered.device().kind, Device::Kind::cuda);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StagedCollectives, testing::Values(1, 2, 4));

TEST(StagedCollectives, refuse_tensors_on_two_devices) {
  run_gpu_ranks(2, [](Collective const& world) {
    auto const in = filled(world, 2);
    auto on_host = Tensor::empty({2, 2}, Dtype::f32);
    EXPECT_THROW(world.all_gather(on_host, in), UsageError);
    auto elsewhere = Tensor::empty({2, 2}, Dtype::f32, Device::cuda(1));
    EXPECT_THROW(world.all_gather(elsewhere, in), UsageError);
    auto own = filled(world, 2);
    world.all_reduce(own);
    auto other = Tensor::zeros({2}, Dtype::f32, Device::cuda(1));
    EXPECT_THROW(world.all_reduce(other), UsageError);
    world.barrier();
  });
}

/// Returns a tensor on the GPU as another library hands it over that does not allow writes.
Tensor read_only(std::int64_t count) {
  auto exported = to_dlpack(Tensor::zeros({count}, Dtype::f32, gpu));
  exported->flags |= dlpack::flag_read_only;
  return from_dlpack(std::move(exported));
}

/// Expects that a call refuses its result before anything is sent.
void expect_refused(char const* operation, std::function<void()> const& call) {
  try {
    call();
    ADD_FAILURE() << operation << " writes read-only memory";
  } catch (UsageError const& e) {
    EXPECT_EQ(e.info().operation, operation);
    EXPECT_EQ(e.info().got, "read-only memory of another library");
    EXPECT_TRUE(e.group_usable());
  }
}

TEST(StagedCollectives, refuse_read_only_memory_for_the_result) {
  run_gpu_ranks(2, [](Collective const& world) {
    auto part = read_only(2);
    auto whole = read_only(4);
    auto const in_part = filled(world, 2);
    auto const in_whole = filled(world, 4);
    Root const self{world.rank()};
    std::vector<std::int64_t> const rows{2, 2};
    expect_refused("broadcast", [&] { world.broadcast(part, {1 - world.rank()}); });
    expect_refused("all_reduce", [&] { world.all_reduce(part); });
    expect_refused("reduce", [&] { world.reduce(part, ReduceOp::sum, self); });
    expect_refused("reduce_scatter", [&] { world.reduce_scatter(part, in_whole); });
    expect_refused("reduce_scatterv", [&] { world.reduce_scatterv(part, in_whole, {.rows = rows}); });
    expect_refused("all_gather", [&] { world.all_gather(whole, in_part); });
    expect_refused("all_gatherv", [&] { world.all_gatherv(whole, in_part, {.rows = rows}); });
    expect_refused("gather", [&] { world.gather(whole, in_part, self); });
    expect_refused("gatherv", [&] { world.gatherv(whole, in_part, {.rows = rows, .root = self.root}); });
    expect_refused("scatter", [&] { world.scatter(part, in_whole, self); });
    expect_refused("scatterv", [&] { world.scatterv(part, in_whole, {.rows = rows, .root = self.root}); });
    expect_refused("all_to_all", [&] { world.all_to_all(whole, in_whole); });
    expect_refused("all_to_allv", [&] { world.all_to_allv(whole, in_whole, {.send = rows, .receive = rows}); });
    expect_refused("recv", [&] { world.recv(part, 1 - world.rank()); });
    std::vector<Tensor> list{filled(world, 2), part};
    std::vector<Tensor> wholes{filled(world, 4), whole};
    std::vector<Tensor> const ins{in_part, in_part};
    std::vector<Tensor> const in_wholes{in_whole, in_whole};
    expect_refused("all_reduce", [&] { world.iall_reduce(std::span<Tensor>(list)).wait(); });
    expect_refused("all_gather",
                   [&] { world.iall_gather(std::span<Tensor>(wholes), std::span<Tensor const>(ins)).wait(); });
    expect_refused("reduce_scatter",
                   [&] { world.ireduce_scatter(std::span<Tensor>(list), std::span<Tensor const>(in_wholes)).wait(); });
    // It may be read.
    if (world.rank() == 0) return world.send(part, 1);
    auto got = filled(world, 2);
    world.recv(got, 0);
    EXPECT_EQ(values(got), std::vector<float>(2, 0));
  });
}

TEST(StagedCollectives, a_copy_that_fails_between_two_pieces_ends_the_call_on_all_ranks) {
  std::atomic<int> failed{0};
  std::atomic<int> error_count{0};
  run_gpu_ranks(2, [&](Collective const& world) {
    auto tensor = filled(world, (9 << 20) / 4);
    // Both ranks copy two pieces to the host before the first exchange, so the fifth copy is behind it.
    if (world.rank() == 0) fail_call("cuMemcpyDtoHAsync_v2", 5, 1);
    world.barrier();
    try {
      world.all_reduce(tensor);
      ADD_FAILURE() << "no error";
    } catch (BackendError const&) {
      ++failed;
    } catch (PeerLostError const& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("in the middle of a call"));
      ++error_count;
    }
  });
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(error_count, 1);
}

/// The copy of the first result to the GPU has not run yet when the second call needs a buffer.
TEST(StagedCollectives, a_result_under_way_keeps_its_buffer) {
  run_gpu_ranks(3, [](Collective const& world) {
    auto first = filled(world, 100);
    auto second = filled(world, 100);
    current_stream(gpu).synchronize();
    auto const stream = Stream::create(gpu);
    std::optional<HeldStream> held;
    if (world.rank() == 2) held.emplace(stream.native());
    {
      StreamGuard const guard(stream);
      world.broadcast(first, Root{0});
    }
    world.broadcast(second, Root{1});
    EXPECT_EQ(values(second), std::vector<float>(100, 2));
    if (held) held->release();
    StreamGuard const guard(stream);
    EXPECT_EQ(values(first), std::vector<float>(100, 1));
  });
}

/// The receiver's GPU does not continue until the host has waited for it, or until all broadcasts have been made.
TEST(StagedCollectives, a_gpu_that_lags_behind_does_not_cost_ever_more_memory) {
  constexpr int broadcasts = 60;
  run_gpu_ranks(2, [](Collective const& world) {
    auto tensor = filled(world, 100);
    world.broadcast(tensor);
    current_stream(gpu).synchronize();
    world.barrier();
    if (world.rank() == 0) {
      for (int i = 0; i < broadcasts; ++i) world.broadcast(tensor);
      return;
    }
    auto const stream = Stream::create(gpu);
    StreamGuard const guard(stream);
    HeldStream held(stream.native());
    reset_calls();
    std::jthread const releaser([&held](std::stop_token const& ended) {
      // A copy of memory that is not page-locked waits inside the driver.
      while (!ended.stop_requested() && calls("cuEventQuery") < 2'000 && calls("pageable_copy") == 0)
        std::this_thread::yield();
      EXPECT_EQ(calls("pageable_copy"), 0U);
      held.release();
    });
    for (int i = 0; i < broadcasts; ++i) world.broadcast(tensor);
    EXPECT_LE(calls("cuMemHostAlloc"), 18U);  // the root has some too
    EXPECT_EQ(values(tensor), std::vector<float>(100, 1));
  });
}

TEST(StagedCollectives, cpu_on_one_rank_and_gpu_on_another_is_a_mismatch) {
  run_gpu_ranks(2, [](Collective const& world) {
    auto tensor = world.rank() == 0 ? filled(world, 4) : Tensor::zeros({4}, Dtype::f32);
    try {
      world.all_reduce(tensor);
      ADD_FAILURE() << "no error";
    } catch (MismatchError const& e) {
      EXPECT_THAT(e.info().message, testing::HasSubstr("on cuda"));
    }
  });
}

}  // namespace
}  // namespace crossrank::test
