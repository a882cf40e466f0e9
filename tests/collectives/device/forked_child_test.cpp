#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/parallel.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"

/// A child that is forked after its parent has used GPUs. It has no CUDA, and may neither wait for the parent's groups
/// nor end them.
namespace crossrank::test {
namespace {

constexpr unsigned child_limit_s = 60;

/// Runs `body` in a forked child, and expects that it ends with exit code 0.
void in_child(std::string const& what, std::function<int()> const& body) {
  auto const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(child_limit_s);
    ::_exit(body());
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << what << ": status " << status;
}

/// Returns 0 if the call is a `UsageError`.
int refusal_of(std::function<void()> const& call) {
  try {
    call();
  } catch (UsageError const&) {
    return 0;
  } catch (std::exception const& e) {
    ::dprintf(STDERR_FILENO, "%s\n", e.what());
    return 2;
  }
  return 1;
}

/// The objects that a rank has made on its GPU.
struct Made {
  std::optional<Collective> world{};
  Tensor tensor{};
  std::optional<ProcessGroup> communicator{};
  cuda::Graph graph{};
};

Made make(RankSelf const& self) {
  Made made{.world = connect_gpu_rank()};
  made.tensor = filled(*made.world, 20'000);
  made.world->all_reduce(made.tensor);
  EXPECT_EQ(made.world->device_backend(), self.arguments.at(0));
  if (self.arguments.at(0) == "nccl") {
    made.communicator = nccl::process_group(*made.world);
    auto const stream = Stream::create(default_device());
    made.graph = cuda::Graph::capture(stream, [&] { made.world->all_reduce(made.tensor); });
  }
  current_stream(default_device()).synchronize();
  made.world->barrier();
  return made;
}

int other_rank(Collective const& world) { return 1 - world.rank(); }

/// Expects that everything still works.
void use(Made const& made) {
  auto tensor = filled(*made.world, 20'000);
  made.world->all_reduce(tensor);
  EXPECT_THAT(values(tensor), testing::Each(3));
  if (made.graph) made.graph.replay();
  auto received = filled(*made.world, 20'000);
  made.world->sendrecv(received, filled(*made.world, 20'000),
                       {.dst = other_rank(*made.world), .src = other_rank(*made.world)});
  EXPECT_THAT(values(received), testing::Each(static_cast<float>(other_rank(*made.world) + 1)));
  auto gathered = get_tensors_parallel(filled(*made.world, 20'000), *made.world);
  gathered.close();
}

CROSSRANK_RANK_SCENARIO(forked_child_uses_gpus) {
  auto made = make(self);
  auto& world = *made.world;
  use(made);
  auto& tensor = made.tensor;
  in_child("all_reduce", [&] { return refusal_of([&] { world.all_reduce(tensor); }); });
  in_child("iall_reduce", [&] { return refusal_of([&] { world.iall_reduce(tensor).wait(); }); });
  in_child("send", [&] { return refusal_of([&] { world.send(tensor, other_rank(world)); }); });
  in_child("recv", [&] { return refusal_of([&] { world.recv(tensor, other_rank(world)); }); });
  in_child("gather", [&] { return refusal_of([&] { get_tensors_parallel(tensor, world).close(); }); });
  in_child("split", [&] { return refusal_of([&] { static_cast<void>(world.split({{0, 1}})); }); });
  if (made.graph) {
    in_child("replay", [&] { return refusal_of([&] { made.graph.replay(); }); });
    in_child("capture", [&] {
      return refusal_of([&] {
        static_cast<void>(cuda::Graph::capture(Stream::create(default_device()), [&] { world.all_reduce(tensor); }));
      });
    });
  }
  use(made);
  world.barrier();
  return end_gpu_rank();
}

/// The destructors of a child leave the parent's communicator, graph and memory alone.
CROSSRANK_RANK_SCENARIO(forked_child_ends) {
  auto made = make(self);
  use(made);
  in_child("destructors", [&] {
    made.graph = {};
    made.communicator.reset();
    made.tensor = {};
    made.world.reset();
    return 0;
  });
  in_child("close", [&] { return refusal_of([&] { made.world->close(); }); });
  in_child("abort", [&] {
    made.world->abort("the child of a rank gives up");
    return 0;
  });
  use(made);
  made.world->barrier();
  return end_gpu_rank();
}

class ForkedChild : public testing::TestWithParam<char const*> {
 protected:
  static void run(std::string_view scenario) {
    auto options = gpu_ranks();
    options.arguments = {GetParam()};
    if (std::string(GetParam()) == "staged") options.environment["CROSSRANK_DEVICE"] = "staged";
    expect_job_ok(2, scenario, std::move(options));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ForkedChild, testing::Values("nccl", "staged"),
                         [](auto const& one) { return std::string(one.param); });

TEST_P(ForkedChild, cannot_use_the_gpus_of_its_parent) { run("forked_child_uses_gpus"); }
TEST_P(ForkedChild, leaves_the_groups_of_its_parent_alone) { run("forked_child_ends"); }

}  // namespace
}  // namespace crossrank::test
