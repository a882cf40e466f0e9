// Gathers that give the memory of a GPU itself. Each rank is a process with its own emulated driver.
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank {
namespace {

using test::calls;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t in_place_elements = 100'000;

std::vector<float> numbers(float value) { return std::vector<float>(in_place_elements, value); }

/// Returns a tensor on this rank's GPU that other processes can open.
Tensor shareable(float value) {
  auto tensor = Tensor::empty({in_place_elements}, Dtype::f32, {.device = default_device(), .shareable = true});
  tensor.copy_from(Tensor::of(numbers(value), {in_place_elements}));
  return tensor;
}

std::vector<float> read_back(Tensor const& tensor) {
  auto const on_host = tensor.to(Device::cpu());
  auto const all = on_host.as<float>();
  return {all.begin(), all.end()};
}

GatherOptions in_place() {
  GatherOptions options;
  options.in_place = true;
  return options;
}

/// Runs a scenario on ranks that have an emulated GPU each.
test::JobOutcome run_in_place(int ranks, std::string_view scenario, test::RankOptions options = {}) {
  options.environment["CROSSRANK_CUDA_LIBRARY"] = CROSSRANK_TEST_CUDA;
  options.environment["EMULATED_GPU_COUNT"] = "4";
  return test::run_ranks(ranks, scenario, std::move(options));
}

// ---------------------------------------------------------------- views

CROSSRANK_RANK_SCENARIO(gathers_in_place) {
  {
    auto const world = connect();
    auto const whole = shareable(static_cast<float>(self.rank + 1));
    StateDict mine{{"whole", whole},
                   {"part", whole.narrow(0, 100, 10)},
                   {"host", Tensor::of<float>({1, 2}, {2})},
                   {"none", Tensor()},
                   {"empty", Tensor::empty({0}, Dtype::f32, default_device())}};
    current_stream(default_device()).synchronize();
    world.barrier();
    test::reset_calls();
    auto range = get_tensors_parallel(mine, world, in_place());
    int rank = 0;
    for (auto const& state : range) {
      auto const owner = Device::cuda(rank);
      EXPECT_EQ(state.at("whole").device(), owner);
      EXPECT_EQ(state.at("part").device(), owner);
      EXPECT_EQ(state.at("host").device(), Device::cpu());
      EXPECT_FALSE(state.at("none").defined());
      EXPECT_EQ(state.at("empty").numel(), 0);
      EXPECT_EQ(calls("copy"), 0U);
      EXPECT_EQ(read_back(state.at("whole")), numbers(static_cast<float>(rank + 1)));
      EXPECT_EQ(read_back(state.at("part")), std::vector<float>(10, static_cast<float>(rank + 1)));
      ++rank;
      test::reset_calls();
    }
    EXPECT_EQ(rank, self.rank == 0 ? self.world_size : 0);
    range.close();
    if (self.rank != 0) {
      EXPECT_EQ(calls("copy"), 0U);
    }
    EXPECT_EQ(test::live("allocation"), 1U) << "the receiver has closed what it has opened";
    mine.at("whole").copy_from(Tensor::of(numbers(0), {in_place_elements}));
    world.barrier();
  }
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

class InPlaceGather : public testing::TestWithParam<int> {};

TEST_P(InPlaceGather, gives_views_of_the_gpus_without_a_copy) {
  auto const job = run_in_place(GetParam(), "gathers_in_place");
  EXPECT_TRUE(job.ok()) << job.text();
}

TEST_P(InPlaceGather, opens_memory_once_also_with_an_older_driver) {
  auto const job =
      run_in_place(GetParam(), "gathers_in_place", {.environment = {{"EMULATED_GPU_DRIVER_VERSION", "11080"}}});
  EXPECT_TRUE(job.ok()) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, InPlaceGather, testing::Values(1, 2, 4));

CROSSRANK_RANK_SCENARIO(gathers_workspace_memory_in_place) {
  {
    auto const world = connect();
    SharedMemoryWorkspace const workspace(world);
    auto mine = workspace.empty({in_place_elements}, Dtype::f32, default_device());
    EXPECT_EQ(mine.device(), default_device());
    EXPECT_EQ(workspace.empty({2}, Dtype::f32, Device::cpu()).device(), Device::cpu());
    mine.copy_from(Tensor::of(numbers(3), {in_place_elements}));
    auto tensors = get_tensors_parallel(mine, world, in_place());
    int rank = 0;
    for (auto const& tensor : tensors) {
      EXPECT_EQ(tensor.device(), Device::cuda(rank)) << "a view, and not a copy on the CPU";
      EXPECT_EQ(read_back(tensor), numbers(3));
      ++rank;
    }
    tensors.close();
    world.barrier();
  }
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceMemory, of_a_workspace_is_shared) {
  auto const job = run_in_place(2, "gathers_workspace_memory_in_place");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(gathers_pool_memory_in_place) {
  auto const world = connect();
  auto const mine = Tensor::of(numbers(5), {in_place_elements}).to(default_device());
  auto tensors = get_tensors_parallel(mine, world, in_place());
  int rank = 0;
  for (auto const& tensor : tensors) {
    EXPECT_EQ(tensor.device(), rank == 0 ? default_device() : Device::cpu())
        << "copied, because a pool cannot be shared";
    EXPECT_EQ(read_back(tensor), numbers(5));
    ++rank;
  }
  tensors.close();
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceMemory, of_a_pool_is_copied) {
  auto const job = run_in_place(2, "gathers_pool_memory_in_place");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(gathers_in_place_without_the_gpu) {
  auto const world = connect();
  auto const mine = shareable(1);
  auto range = get_tensors_parallel(mine, world, in_place());
  if (self.rank == 0) {
    try {
      static_cast<void>(range[1]);
      ADD_FAILURE() << "no error";
    } catch (UnavailableError const& e) {
      EXPECT_THAT(e.what(), HasSubstr("CUDA_VISIBLE_DEVICES"));
    }
  }
  range.close();
  EXPECT_EQ(read_back(mine), numbers(1));
  world.barrier();
  return 0;
}

TEST(InPlaceMemory, of_a_gpu_that_the_receiver_does_not_see_is_an_error_of_that_item) {
  test::RankOptions options;
  options.rank_environment[0]["CUDA_VISIBLE_DEVICES"] = "0";
  auto const job = run_in_place(2, "gathers_in_place_without_the_gpu", std::move(options));
  EXPECT_TRUE(job.ok()) << job.text();
}

/// Ranks in one process cannot open each other's handles; they view the memory itself.
CROSSRANK_RANK_SCENARIO(gathers_in_place_between_threads) {
  test::run_thread_ranks(2, [](Collective const& world) {
    auto const mine = shareable(static_cast<float>(world.rank()));
    auto tensors = get_tensors_parallel(mine, world, in_place());
    if (world.rank() == 0) {
      EXPECT_EQ(tensors[1].device().kind, Device::Kind::cuda);
      EXPECT_EQ(read_back(tensors[1]), numbers(1));
    }
    tensors.close();
  });
  EXPECT_EQ(test::reports(), 0U);
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(InPlaceMemory, of_the_same_process_is_viewed) {
  auto const job = run_in_place(1, "gathers_in_place_between_threads");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(writes_a_state_in_place) {
  {
    auto const world = connect();
    SharedMemoryWorkspace workspace(world);
    auto mine = shareable(static_cast<float>(self.rank));
    workspace.write_configs_and_weights({{"rank", self.rank}}, {{"weight", mine}}, {.in_place = true});
    world.barrier();
    for (int rank = 0; rank < self.world_size; ++rank) {
      auto const view = workspace.read_configs_and_weights_from_rank(rank, {.in_place = true});
      EXPECT_EQ(view.value().weights.at("weight").device(), Device::cuda(rank));
      EXPECT_EQ(read_back(view.value().weights.at("weight")), numbers(static_cast<float>(rank)));
      auto const copy = workspace.read_configs_and_weights_from_rank(rank);
      EXPECT_EQ(copy.value().weights.at("weight").device(), Device::cpu());
      EXPECT_EQ(read_back(copy.value().weights.at("weight")), numbers(static_cast<float>(rank)));
    }
    current_stream(default_device()).synchronize();
    world.barrier();
    EXPECT_THROW(mine.copy_from(Tensor::of(numbers(9), {in_place_elements})), UsageError);
    workspace.clean();
    for (int rank = 0; rank < self.world_size; ++rank) cuda::trim(Device::cuda(rank));
    world.barrier();
    mine.copy_from(Tensor::of(numbers(9), {in_place_elements}));
    current_stream(default_device()).synchronize();
    world.barrier();
  }
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceState, is_viewed_by_all_ranks_until_it_is_withdrawn) {
  auto const job = run_in_place(2, "writes_a_state_in_place");
  EXPECT_TRUE(job.ok()) << job.text();
}

// ---------------------------------------------------------------- leases

CROSSRANK_RANK_SCENARIO(holds_memory_in_place) {
  {
    auto const world = connect();
    auto mine = shareable(static_cast<float>(self.rank));
    auto tensors = get_tensors_parallel(mine, world, in_place()).take();
    if (self.rank == 1) {
      try {
        mine.copy_from(Tensor::of(numbers(9), {in_place_elements}));
        ADD_FAILURE() << "no error";
      } catch (UsageError const& e) {
        EXPECT_THAT(e.what(), HasSubstr("given in place to rank 0"));
      }
      mine = Tensor();  // the reader still has it
      current_stream(default_device()).synchronize();
      auto const other = shareable(7);
    } else {
      try {
        tensors.at(1).copy_from(Tensor::of(numbers(9), {in_place_elements}));
        ADD_FAILURE() << "no error";
      } catch (UsageError const& e) {
        EXPECT_THAT(e.what(), HasSubstr("received in place from rank 1"));
      }
    }
    world.barrier();
    if (self.rank == 0) {
      EXPECT_EQ(read_back(tensors.at(1)), numbers(1));
    }
    tensors.clear();
    world.barrier();
    // The next call of this kind frees what nobody reads any more.
    auto const small = shareable(3);
    get_tensors_parallel(small, world, in_place()).close();
    current_stream(default_device()).synchronize();
    cuda::trim(default_device());
    if (self.rank == 1) {
      EXPECT_EQ(test::live("allocation"), 1U);
    }
    world.barrier();
  }
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceLease, keeps_and_freezes_the_memory_until_the_last_view_goes) {
  auto const job = run_in_place(2, "holds_memory_in_place");
  EXPECT_TRUE(job.ok()) << job.text();
}

/// The owner publishes while its GPU still writes. The receiver drops a view before its GPU has read it.
CROSSRANK_RANK_SCENARIO(drops_a_view_that_is_being_read) {
  auto const world = connect();
  auto mine = shareable(0);
  auto const source = shareable(1);  // not freed before the end: a free would wait for the GPU
  mine.copy_from(source);
  auto copy = Tensor::empty({in_place_elements}, Dtype::f32, default_device());
  auto tensors = get_tensors_parallel(mine, world, in_place()).take();
  std::optional<test::HeldStream> held;
  if (self.rank == 0) {
    held.emplace(current_stream(default_device()).native());
    copy.copy_from(tensors.at(1));
    tensors.clear();
    EXPECT_EQ(calls("cuIpcCloseMemHandle"), 0U) << "the host would wait for the GPU";
  }
  world.barrier();
  if (self.rank == 1) {
    EXPECT_THROW(mine.copy_from(Tensor::of(numbers(2), {in_place_elements})), UsageError);
  }
  world.barrier();
  if (self.rank == 0) {
    held.reset();
    EXPECT_EQ(read_back(copy), numbers(1));
    cuda::trim(default_device());  // drops what the GPU has passed
    EXPECT_EQ(calls("cuIpcCloseMemHandle"), 1U);
  }
  world.barrier();
  mine.copy_from(Tensor::of(numbers(2), {in_place_elements}));
  EXPECT_EQ(read_back(mine), numbers(2));
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceLease, lasts_until_the_gpu_has_read_the_view) {
  auto const job = run_in_place(2, "drops_a_view_that_is_being_read");
  EXPECT_TRUE(job.ok()) << job.text();
}

// ---------------------------------------------------------------- deaths

CROSSRANK_RANK_SCENARIO(loses_the_owner_of_a_view) {
  auto const world = connect({.timeout = test::step_timeout});
  auto const mine = shareable(1);
  auto tensors = get_tensors_parallel(mine, world, in_place()).take();
  if (self.rank == 1) {
    self.say("lent");
    for (;;) ::pause();
  }
  EXPECT_EQ(read_back(tensors.at(1)), numbers(1));
  self.say("read");
  for (bool lost = false; !lost;) {
    try {
      static_cast<void>(tensors.at(1).to(Device::cpu()));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } catch (PeerLostError const& e) {
      EXPECT_THAT(e.info().failed_ranks, ElementsAre(1));
      lost = true;
    }
  }
  auto copy = Tensor::empty({in_place_elements}, Dtype::f32, default_device());
  EXPECT_THROW(copy.copy_from(tensors.at(1)), PeerLostError);
  EXPECT_THROW(static_cast<void>(tensors.at(1).clone()), PeerLostError);
  tensors.clear();
  EXPECT_EQ(read_back(mine), numbers(1)) << "the GPU stays usable";
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceOwner, that_is_killed_makes_its_views_a_typed_error) {
  test::RankOptions options;
  options.signals = {{.rank = 1, .signal = SIGKILL, .marker = "read", .marker_rank = 0}};
  auto const job = run_in_place(2, "loses_the_owner_of_a_view", std::move(options));
  EXPECT_TRUE(job.ranks.at(0).ok()) << job.text();
}

/// A reader that is killed keeps nothing frozen.
CROSSRANK_RANK_SCENARIO(loses_the_reader_of_a_view) {
  auto const world = connect({.timeout = test::step_timeout});
  auto mine = shareable(1);
  auto tensors = get_tensors_parallel(mine, world, in_place()).take();
  if (self.rank == 0) {
    self.say("held");
    for (;;) ::pause();
  }
  for (bool written = false; !written;) {
    try {
      mine.copy_from(Tensor::of(numbers(2), {in_place_elements}));
      written = true;
    } catch (UsageError const&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  EXPECT_EQ(read_back(mine), numbers(2));
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(InPlaceReader, that_is_killed_frees_the_memory) {
  test::RankOptions options;
  options.signals = {{.rank = 0, .signal = SIGKILL, .marker = "held"}};
  auto const job = run_in_place(2, "loses_the_reader_of_a_view", std::move(options));
  EXPECT_TRUE(job.ranks.at(1).ok()) << job.text();
}

}  // namespace
}  // namespace crossrank
