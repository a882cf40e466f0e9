#include <csignal>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/error_of.hpp"

/// Graphs of collectives that NCCL carries.
namespace crossrank::test {
namespace {

using cuda::Graph;

std::vector<int> everyone(Collective const& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.world_size(); ++rank) ranks.push_back(rank);
  return ranks;
}

/// Sets the elements of a tensor in the order of the current stream.
void fill(Tensor& tensor, float value) {
  tensor.copy_from(Tensor::of(std::vector<float>(as_size(tensor.numel()), value), tensor.shape()));
}

class NcclGraph : public testing::TestWithParam<int> {
 protected:
  static void run(std::string_view scenario) { expect_job_ok(GetParam(), scenario); }
};

// ---------------------------------------------------------------- replays

CROSSRANK_RANK_SCENARIO(nccl_graph_replays) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  auto const ranks = static_cast<float>(world.world_size());
  auto const sum = ranks * (ranks + 1) / 2;
  {
    auto const scope = group.graph_capture();
    auto const& stream = scope.context().stream;
    EXPECT_EQ(current_stream(default_device()), stream);
    EXPECT_EQ(group.device_group().device_backend(), "nccl");
    auto in = filled(world, 1'000);
    auto several = std::vector<Tensor>{filled(world, 2), filled(world, 3)};
    Tensor gathered;
    auto const before = emulated_count("nccl_kernel");
    auto const graph = Graph::capture(stream, [&] {
      group.device_group().all_reduce(in);
      auto request = group.device_group().iall_reduce(std::span<Tensor>(several));
      while (!request.test()) std::this_thread::yield();  // once the ranks have compared their arguments
      gathered = group.all_gather(in.narrow(0, 0, 2));
    });
    EXPECT_EQ(emulated_count("nccl_kernel"), before + 3) << "captured, each once";
    EXPECT_EQ(values(in), std::vector<float>(1'000, static_cast<float>(world.rank() + 1))) << "not done yet";
    for (float const value : {1.0F, 2.0F}) {
      fill(in, value);
      for (auto& one : several) fill(one, value);
      stream.synchronize();
      reset_emulated_counts();
      graph.replay();
      EXPECT_EQ(emulated_count("host_wait"), 0U);
      EXPECT_EQ(values(in), std::vector<float>(1'000, value * ranks));
      EXPECT_EQ(values(several[1]), std::vector<float>(3, value * ranks));
      EXPECT_EQ(values(gathered), std::vector<float>(2 * as_size(world.world_size()), value * ranks));
    }
    // Other calls between replays.
    auto other = filled(world, 5);
    group.device_group().all_reduce(other);
    fill(in, 3);
    graph.replay();
    EXPECT_EQ(values(other), std::vector<float>(5, sum));
    EXPECT_EQ(values(in), std::vector<float>(1'000, 3 * ranks));
  }
  EXPECT_EQ(current_stream(default_device()).native(), nullptr) << "restored";
  return end_gpu_rank();
}

TEST_P(NcclGraph, repeats_collectives_on_new_inputs) { run("nccl_graph_replays"); }

/// A call that was started before a replay reaches the GPU before it, whichever rank looks at the call meanwhile.
CROSSRANK_RANK_SCENARIO(nccl_graph_after_a_call) {
  auto const world = connect_gpu_rank();
  auto const ranks = static_cast<float>(world.world_size());
  auto const stream = Stream::create(default_device());
  auto const other = world.split({everyone(world)}, "other");
  auto replayed = filled(world, 4);
  auto called = filled(world, 4);
  world.all_reduce(called);
  current_stream(default_device()).synchronize();
  auto const graph = Graph::capture(stream, [&] { world.all_reduce(replayed); });
  StreamGuard const guard(stream);
  for (int round = 0; round < 20; ++round) {
    fill(called, 1);
    fill(replayed, 100);
    auto request = world.iall_reduce(called);
    if (round % 2 == 1) {
      other.barrier();  // advances the call on some ranks
    } else if (world.rank() == 1) {
      static_cast<void>(request.test());
    }
    graph.replay(stream);
    request.wait();
    EXPECT_EQ(values(called), std::vector<float>(4, ranks)) << "round " << round;
    EXPECT_EQ(values(replayed), std::vector<float>(4, 100 * ranks)) << "round " << round;
  }
  return end_gpu_rank();
}

TEST_P(NcclGraph, follows_the_calls_that_were_started_before_it) { run("nccl_graph_after_a_call"); }

/// The scope's stream follows the one before, and is followed by it, without a wait of the host.
CROSSRANK_RANK_SCENARIO(nccl_graph_scope) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  static_cast<void>(group.graph_capture());
  auto const own = static_cast<float>(world.rank() + 1);
  for (int round = 0; round < 20; ++round) {
    auto source = filled(world, 10'000);
    auto middle = Tensor::zeros({10'000}, Dtype::f32, default_device());
    auto target = Tensor::zeros({10'000}, Dtype::f32, default_device());
    current_stream(default_device()).synchronize();
    middle.copy_from(source);
    auto const scoped = Stream::create(default_device());
    {
      auto const scope = group.graph_capture({scoped});
      target.copy_from(middle);
    }
    EXPECT_EQ(values(target), std::vector<float>(10'000, own));
  }
  return end_gpu_rank();
}

TEST_P(NcclGraph, is_captured_in_a_scope_that_keeps_the_order) { run("nccl_graph_scope"); }

/// Two groups share a context, and a graph.
CROSSRANK_RANK_SCENARIO(nccl_graph_of_two_groups) {
  auto const world = connect_gpu_rank();
  auto const tp = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  auto const pp = GroupCoordinator::create(world, {everyone(world)}, {.name = "pp", .device_communicator = true});
  {
    auto const outer = tp.graph_capture();
    auto const inner = pp.graph_capture(outer.context());
    EXPECT_EQ(inner.context().stream, outer.context().stream);
    auto tensor = filled(world, 4);
    auto const graph = Graph::capture(inner.context().stream, [&] {
      tp.device_group().all_reduce(tensor);
      pp.device_group().all_reduce(tensor);
    });
    fill(tensor, 1);
    graph.replay();
    auto const ranks = static_cast<float>(world.world_size());
    EXPECT_EQ(values(tensor), std::vector<float>(4, ranks * ranks));
  }
  return end_gpu_rank();
}

TEST_P(NcclGraph, joins_the_calls_of_several_groups) { run("nccl_graph_of_two_groups"); }

CROSSRANK_RANK_SCENARIO(nccl_graph_of_a_maximum) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  {
    auto const scope = group.graph_capture();
    auto tensor = filled(world, 4);
    auto several = std::vector<Tensor>{filled(world, 2), filled(world, 3)};
    auto const graph = Graph::capture(scope.context().stream, [&] {
      group.device_group().all_reduce(tensor, ReduceOp::max);
      auto request = group.device_group().iall_reduce(std::span<Tensor>(several), ReduceOp::min);
      while (!request.test()) std::this_thread::yield();
    });
    graph.replay();
    EXPECT_EQ(values(tensor), std::vector<float>(4, static_cast<float>(world.world_size())));
    EXPECT_EQ(values(several[1]), std::vector<float>(3, 1));
  }
  return end_gpu_rank();
}

TEST_P(NcclGraph, carries_min_and_max_of_floats) { run("nccl_graph_of_a_maximum"); }

INSTANTIATE_TEST_SUITE_P(Ranks, NcclGraph, testing::Values(2, 4));

CROSSRANK_RANK_SCENARIO(nccl_graph_of_one_rank) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  {
    auto const scope = group.graph_capture();
    auto tensor = filled(world, 4);
    auto const graph = Graph::capture(scope.context().stream, [&] { group.device_group().all_reduce(tensor); });
    fill(tensor, 2);
    graph.replay();
    EXPECT_EQ(values(tensor), std::vector<float>(4, 2));
  }
  return end_gpu_rank();
}

TEST(NcclGraphOfOneRank, is_captured_in_a_scope_without_an_earlier_call) { expect_job_ok(1, "nccl_graph_of_one_rank"); }

// ---------------------------------------------------------------- communication buffers

CROSSRANK_RANK_SCENARIO(nccl_communication_buffers) {
  auto const world = connect_gpu_rank();
  auto const& function = self.arguments.at(0);
  auto const other = self.arguments.at(1);
  {
    auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
    group.prepare_communication_buffer_for_model({{"tokens", {4, 1'000}, Dtype::f32}, {"logits", {3}, Dtype::f32}});
    group.prepare_communication_buffer_for_model({{"logits", {3}, Dtype::f32}});
    EXPECT_EQ(emulated_count(function.c_str()), function == "none" ? 0U : 2U);
    EXPECT_EQ(emulated_count("ncclMemAlloc"), function == "none" ? 0U : 2U);
    EXPECT_EQ(emulated_count(other.c_str()), 0U);
    auto buffer = group.communication_buffer("tokens");
    EXPECT_EQ(buffer.device(), default_device());
    EXPECT_EQ(values(buffer), std::vector<float>(4'000));
    fill(buffer, 2);
    group.device_group().all_reduce(buffer);
    EXPECT_EQ(values(buffer), std::vector<float>(4'000, 2 * static_cast<float>(world.world_size())));
    current_stream(default_device()).synchronize();
    buffer = {};
    group.destroy();
    EXPECT_EQ(emulated_count(function == "ncclCommRegister" ? "ncclCommDeregister" : "ncclCommWindowDeregister"),
              function == "none" ? 0U : 2U);
  }
  EXPECT_EQ(emulated_count("ncclMemFree"), emulated_count("ncclMemAlloc"));
  return end_gpu_rank();
}

void run_with_buffers(int ranks, EmulatedNccl version, std::string function, std::string other) {
  auto options = gpu_ranks(version);
  options.arguments = {std::move(function), std::move(other)};
  expect_job_ok(ranks, "nccl_communication_buffers", std::move(options));
}

TEST(NcclBuffers, are_windows_of_the_communicator) {
  run_with_buffers(3, EmulatedNccl::newest, "ncclCommWindowRegister", "ncclCommRegister");
}
TEST(NcclBuffers, are_registered_where_there_are_no_windows) {
  run_with_buffers(2, EmulatedNccl::v2_22, "ncclCommRegister", "ncclCommWindowRegister");
}
TEST(NcclBuffers, are_ordinary_memory_with_an_older_library) {
  run_with_buffers(2, EmulatedNccl::v2_18, "none", "ncclCommRegister");
}
TEST(NcclBuffers, are_ordinary_memory_without_nccl) {
  run_with_buffers(2, EmulatedNccl::none, "none", "ncclCommRegister");
}

CROSSRANK_RANK_SCENARIO(nccl_buffer_without_memory) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  std::vector<BufferDescription> const buffers{{"tokens", {1'000}, Dtype::f32}};
  try {
    group.prepare_communication_buffer_for_model(buffers);
    ADD_FAILURE() << "no error";
  } catch (UnavailableError const& e) {
    EXPECT_EQ(e.info().operation, "prepare_communication_buffer_for_model");
    EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(1));
    EXPECT_THAT(e.info().message, testing::HasSubstr("rank 1"));
    EXPECT_TRUE(e.group_usable());
  }
  EXPECT_EQ(emulated_count("ncclCommWindowRegister"), 0U);
  group.prepare_communication_buffer_for_model(buffers);
  EXPECT_EQ(emulated_count("ncclCommWindowRegister"), 1U);
  return end_gpu_rank();
}

TEST(NcclBuffers, are_an_error_on_all_ranks_where_one_has_no_memory) {
  auto options = gpu_ranks();
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = "ncclMemAlloc:1:1";
  expect_job_ok(3, "nccl_buffer_without_memory", std::move(options));
}

CROSSRANK_RANK_SCENARIO(nccl_buffers_of_different_sizes) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  EXPECT_THROW(group.prepare_communication_buffer_for_model({{"tokens", {1'000 + world.rank() / 2}, Dtype::f32}}),
               MismatchError);
  world.barrier();
  return end_gpu_rank();
}

TEST(NcclBuffers, of_different_sizes_are_a_mismatch) { expect_job_ok(3, "nccl_buffers_of_different_sizes"); }

CROSSRANK_RANK_SCENARIO(nccl_refused_registration) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {everyone(world)}, {.name = "tp", .device_communicator = true});
  try {
    group.prepare_communication_buffer_for_model({{"tokens", {1'000}, Dtype::f32}});
    ADD_FAILURE() << "no error";
  } catch (BackendError const&) {
    EXPECT_EQ(self.rank, 1);
  } catch (PeerLostError const& e) {
    EXPECT_NE(self.rank, 1);
    EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(1));
  }
  return 0;
}

TEST(NcclBuffers, that_one_rank_cannot_register_are_an_error_on_all_ranks) {
  auto options = gpu_ranks();
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = "ncclCommWindowRegister:1:2";
  expect_job_ok(3, "nccl_refused_registration", std::move(options));
}

// ---------------------------------------------------------------- captures that cannot be

CROSSRANK_RANK_SCENARIO(nccl_graph_refusals) {
  auto const world = connect_gpu_rank();
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  current_stream(default_device()).synchronize();
  auto const capture = [&](auto body) { static_cast<void>(Graph::capture(stream, body)); };
  EXPECT_THROW(capture([&] { world.all_reduce(tensor); }), UsageError) << "the first call makes the communicator";
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), "nccl");
  EXPECT_THROW(capture([&] {
                 if (world.rank() == 0) world.send(tensor, 1);
                 if (world.rank() == 1) world.recv(tensor, 0);
               }),
               UsageError)
      << "messages go through host memory";
  EXPECT_THROW(capture([&] {
                 world.all_reduce(tensor);
                 EXPECT_THROW(stream.synchronize(), UsageError);
               }),
               UsageError)
      << "invalidated";
  auto unequal = filled(world, 4 + world.rank());
  current_stream(default_device()).synchronize();
  world.barrier();
  EXPECT_THROW(capture([&] { world.all_reduce(unequal); }), MismatchError);
  EXPECT_FALSE(stream.is_capturing());
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, is_typed_and_leaves_the_stream_usable) { expect_job_ok(2, "nccl_graph_refusals"); }

CROSSRANK_RANK_SCENARIO(nccl_first_call_captured_by_one_rank) {
  auto const world = connect_gpu_rank();
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  current_stream(default_device()).synchronize();
  auto const call = [&] { world.all_reduce(tensor); };
  auto const info = error_of<UsageError>([&] {
    if (world.rank() == 1) {
      static_cast<void>(Graph::capture(stream, call));
    } else {
      call();
    }
  });
  EXPECT_EQ(info.operation, "all_reduce");
  EXPECT_THAT(info.failed_ranks, testing::ElementsAre(1));
  EXPECT_TRUE(info.group_usable);
  call();
  EXPECT_EQ(values(tensor), std::vector<float>(4, 6)) << "the group stays usable";
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, of_a_first_call_that_one_rank_captures_reaches_all_ranks) {
  expect_job_ok(3, "nccl_first_call_captured_by_one_rank");
}

CROSSRANK_RANK_SCENARIO(nccl_graph_after_a_refusal) {
  auto const world = connect_gpu_rank();
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  EXPECT_THROW(static_cast<void>(Graph::capture(stream,
                                                [&] {
                                                  world.all_reduce(tensor);
                                                  EXPECT_THROW(stream.synchronize(), UsageError);
                                                })),
               UsageError);
  world.all_reduce(tensor);
  EXPECT_EQ(values(tensor), std::vector<float>(4, 6)) << "the group stays usable";
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, of_an_invalidated_capture_leaves_the_group_usable) {
  expect_job_ok(2, "nccl_graph_after_a_refusal");
}

CROSSRANK_RANK_SCENARIO(nccl_graph_staged) {
  auto const world = connect_gpu_rank();
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), "staged");
  EXPECT_THROW(static_cast<void>(Graph::capture(stream, [&] { world.all_reduce(tensor); })), UsageError);
  world.barrier();
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, of_collectives_through_host_memory_is_typed) {
  expect_job_ok(2, "nccl_graph_staged", gpu_ranks(EmulatedNccl::none));
}

// ---------------------------------------------------------------- replays that cannot end

/// Rank 1 does what the argument says, while the others replay a graph that needs it.
CROSSRANK_RANK_SCENARIO(nccl_graph_without_rank_1) {
  auto const& how = self.arguments.at(0);
  auto const timeout = how == "late" ? short_timeout : step_timeout;
  auto const world = connect({.backend = "shm", .timeout = timeout, .check = CheckLevel::off});
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  auto const graph = Graph::capture(stream, [&] { world.all_reduce(tensor); });
  graph.replay(stream);
  stream.synchronize();
  world.barrier();
  if (self.rank == 1 && how == "death") ::kill(::getpid(), SIGKILL);
  auto const begins = std::chrono::steady_clock::now();
  say_verdict(self, "end", [&] {
    if (self.rank == 1) await_abort();
    note_progress();
    graph.replay(stream);
    stream.synchronize();
  });
  say_verdict(self, "again", [&] { graph.replay(stream); });
  auto const launches = emulated_count("cuGraphLaunch");
  say_verdict(self, "third", [&] { graph.replay(stream); });
  EXPECT_EQ(emulated_count("cuGraphLaunch"), launches) << "nothing is enqueued once the group has failed";
  EXPECT_LT(std::chrono::steady_clock::now() - begins, std::chrono::minutes(2));
  stream.synchronize();
  return 0;
}

TEST(NcclGraphReplay, without_a_dead_rank_is_a_typed_error_and_hangs_nobody) {
  auto options = gpu_ranks();
  options.arguments = {"death"};
  auto const job = run_ranks(3, "nccl_graph_without_rank_1", std::move(options));
  for (auto const* label : {"end", "again", "third"}) expect_death_is_told(job, 1, label);
}

TEST(NcclGraphReplay, without_a_late_rank_is_a_timeout_on_all_ranks) {
  auto options = gpu_ranks();
  options.arguments = {"late"};
  auto const job = run_ranks(3, "nccl_graph_without_rank_1", std::move(options));
  for (auto const* label : {"end", "again", "third"}) {
    auto const verdict = expect_one_verdict(job, {}, label, short_timeout);
    EXPECT_EQ(verdict.code, "timeout") << label << job.text();
    EXPECT_TRUE(verdict.blames_only(1)) << label << job.text();
  }
  EXPECT_THAT(verdict_of(job.ranks[0]).text, testing::HasSubstr("graph with all_reduce")) << job.text();
}

CROSSRANK_RANK_SCENARIO(nccl_graph_of_a_closed_group) {
  auto const world = connect_gpu_rank();
  auto group = world.split({{0, 1}});
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  group.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  auto graph = Graph::capture(stream, [&] { group.all_reduce(tensor); });
  graph.replay(stream);
  stream.synchronize();
  group.close();
  EXPECT_THROW(graph.replay(stream), UsageError);
  graph = {};
  world.barrier();
  return end_gpu_rank();
}

TEST(NcclGraphReplay, after_its_group_was_closed_is_a_usage_error) { expect_job_ok(2, "nccl_graph_of_a_closed_group"); }

/// The launch fails on rank 1, which others have made.
CROSSRANK_RANK_SCENARIO(nccl_graph_failed_launch) {
  auto const world = connect({.backend = "shm", .timeout = step_timeout, .check = CheckLevel::off});
  auto const stream = Stream::create(default_device());
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  auto const graph = Graph::capture(stream, [&] { world.all_reduce(tensor); });
  expect_refused(self.rank, "cuGraphLaunch", [&] {
    graph.replay(stream);
    stream.synchronize();
  });
  return 0;
}

TEST(NcclGraphReplay, that_one_rank_cannot_launch_ends_on_the_others) {
  auto options = gpu_ranks();
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = "cuGraphLaunch:1:999";
  expect_job_ok(2, "nccl_graph_failed_launch", std::move(options));
}

}  // namespace
}  // namespace crossrank::test
