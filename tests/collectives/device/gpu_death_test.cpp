#include <csignal>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/emulated_driver.hpp"

/// A rank ends in the middle of its work on GPUs: it is killed, or it ends with an exception. The others must soon
/// learn which rank it was.
namespace crossrank::test::gpu_death_test {
namespace {

constexpr int ranks = 3;
constexpr int victim = 1;

struct Rank {
  Collective world{};
  bool throws = false;  ///< throw in the next capture

  [[nodiscard]] Collective new_group() const { return world.split({{0, 1, 2}}); }
};

void replay_a_graph(Rank const& rank) {
  auto const stream = Stream::create(default_device());
  auto tensor = filled(rank.world, 1'000);
  current_stream(default_device()).synchronize();  // the graph runs on another stream
  auto const graph = cuda::Graph::capture(stream, [&] {
    rank.world.all_reduce(tensor);
    if (rank.throws) throw std::runtime_error("the model has no such layer");
  });
  graph.replay(stream);
  graph.replay(stream);
  stream.synchronize();
}

void close_a_group(Rank const& rank) {
  auto group = rank.new_group();
  auto tensor = filled(rank.world, 1'000);
  group.all_reduce(tensor);
  group.close();
}

void register_buffers(Rank const& rank) {
  auto const group = GroupCoordinator::create(rank.world, {{0, 1, 2}}, {.name = "tp", .device_communicator = true});
  group.prepare_communication_buffer_for_model({{"tokens", {4, 1'000}, Dtype::f32}});
  group.destroy();
}

void reduce(Rank const& rank) {
  auto tensor = filled(rank.world, 100'000);
  rank.world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
}

/// The first message of a group goes through host memory, the second one stays on the GPUs.
void pass_messages_round_a_ring(Rank const& rank) {
  auto group = rank.new_group();
  auto const out = filled(rank.world, 50'000);
  auto in = filled(rank.world, 50'000);
  Partners const partners{.dst = (rank.world.rank() + 1) % ranks, .src = (rank.world.rank() + ranks - 1) % ranks};
  for (int message = 0; message < 2; ++message) group.sendrecv(in, out, partners);
  group.close();
}

std::map<std::string, void (*)(Rank const&)> const steps{
    {"graph", replay_a_graph}, {"close", close_a_group}, {"buffers", register_buffers},
    {"nccl", reduce},          {"staged", reduce},       {"message", pass_messages_round_a_ring}};

/// Arguments: the step that all ranks repeat, and a call in it, which kills the victim or fails: its name, which one,
/// and the code that `fail_call` takes. Without a name the victim throws while it captures.
CROSSRANK_RANK_SCENARIO(end_in_a_step_on_gpus) {
  auto* const step = steps.at(self.arguments.at(0));
  return end_with_verdict(self, [&] {
    Rank rank{.world = connect(fault_options())};
    auto tensor = filled(rank.world, 10);
    rank.world.all_reduce(tensor);
    constexpr int enough = 1'000;  // so that a call that nobody makes ends the test
    for (int i = 0; i < enough; ++i) {
      if (i == 1 && self.rank == victim) {
        auto const& call = self.arguments.at(1);
        if (call.empty()) rank.throws = true;
        if (!call.empty()) fail_call(call.c_str(), std::stoull(self.arguments.at(2)), std::stoi(self.arguments.at(3)));
      }
      step(rank);
      note_progress();
    }
  });
}

struct Case {
  std::string step{};
  std::string call{};
  int code = -SIGKILL;
  int nth = 1;
  EmulatedNccl version = EmulatedNccl::newest;
};

std::ostream& operator<<(std::ostream& out, Case const& one) { return out << one.step << ' ' << one.call; }

class GpuDeath : public testing::TestWithParam<Case> {};

TEST_P(GpuDeath, reaches_all_other_ranks_with_the_name_of_the_rank) {
  auto const& one = GetParam();
  auto options = gpu_ranks(one.version);
  options.arguments = {one.step, one.call, std::to_string(one.nth), std::to_string(one.code)};
  if (one.step == "staged") options.environment["CROSSRANK_DEVICE"] = "staged";
  auto const job = run_ranks(ranks, "end_in_a_step_on_gpus", std::move(options));
  expect_death_is_told(job, victim);
  EXPECT_EQ(job.ranks.at(victim).signal, one.code < 0 ? SIGKILL : 0) << job.text();
}

std::string name_of(testing::TestParamInfo<Case> const& info) {
  auto const& [step, call, code, nth, version] = info.param;
  return step + "_" + (call.empty() ? "body" : call) + "_" + std::to_string(nth);
}

INSTANTIATE_TEST_SUITE_P(Killed, GpuDeath,
                         testing::Values(Case{"graph", "cuStreamBeginCapture_v2"}, Case{"graph", "ncclAllReduce"},
                                         Case{"graph", "cuStreamEndCapture"},
                                         Case{"graph", "cuGraphInstantiateWithFlags"}, Case{"graph", "cuGraphLaunch"},
                                         Case{"graph", "cuGraphLaunch", -SIGKILL, 2}, Case{"graph", "nccl_kernel"},
                                         Case{"graph", "cuGraphExecDestroy"},  //
                                         Case{"close", "ncclCommFinalize"}, Case{"close", "ncclCommDestroy"},
                                         Case{"buffers", "ncclMemAlloc"}, Case{"buffers", "ncclCommWindowRegister"},
                                         Case{"buffers", "ncclCommWindowDeregister"},
                                         Case{"buffers", "ncclCommRegister", -SIGKILL, 1, EmulatedNccl::v2_22},
                                         Case{"staged", "cuMemcpyDtoHAsync_v2"}, Case{"staged", "cuMemcpyHtoDAsync_v2"},
                                         Case{"message", "cuIpcGetMemHandle"}, Case{"message", "cuIpcOpenMemHandle_v2"},
                                         Case{"message", "cuMemcpyDtoDAsync_v2"}, Case{"message", "cuMemcpyPeerAsync"},
                                         Case{"message", "cuIpcCloseMemHandle"}),
                         name_of);

constexpr int unknown_error = 999;
constexpr int internal_error_of_nccl = 3;
INSTANTIATE_TEST_SUITE_P(Throws, GpuDeath,
                         testing::Values(Case{"graph", "", 0},  //
                                         Case{"graph", "cuStreamBeginCapture_v2", unknown_error},
                                         Case{"graph", "ncclAllReduce", internal_error_of_nccl},
                                         Case{"graph", "cuGraphInstantiateWithFlags", unknown_error},
                                         Case{"graph", "cuGraphLaunch", unknown_error, 2},
                                         Case{"staged", "cuMemcpyDtoHAsync_v2", unknown_error},
                                         Case{"staged", "cuMemcpyHtoDAsync_v2", unknown_error},
                                         Case{"message", "cuMemcpyDtoDAsync_v2", unknown_error},
                                         Case{"message", "cuMemcpyPeerAsync", unknown_error}),
                         name_of);

/// NCCL refuses a captured call on the victim, which continues. The others replay a graph that needs it.
CROSSRANK_RANK_SCENARIO(refuse_a_captured_call) {
  return end_with_verdict(self, [&] {
    auto const world = connect(fault_options());
    auto tensor = filled(world, 10);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    if (self.rank == victim) {
      fail_call("ncclAllReduce", 1, internal_error_of_nccl);
      EXPECT_THROW(replay_a_graph({.world = world}), BackendError);
      await_abort();
    } else {
      note_progress();
      replay_a_graph({.world = world});
    }
  });
}

TEST(GpuFailure, of_a_captured_call_is_told_to_the_others_while_its_rank_lives) {
  auto const job = run_ranks(ranks, "refuse_a_captured_call", gpu_ranks());
  expect_death_is_told(job, victim);
  EXPECT_EQ(verdict_of(job.ranks.at(victim)).code, "ok") << job.text();
}

}  // namespace
}  // namespace crossrank::test::gpu_death_test
