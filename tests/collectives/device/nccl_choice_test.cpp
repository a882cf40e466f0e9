#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"

/// How the ranks of a group decide whether NCCL carries their collectives.
namespace crossrank::test {
namespace nccl_choice_test {
namespace {

CROSSRANK_RANK_SCENARIO(nccl_choice) {
  auto const world = connect_gpu_rank();
  EXPECT_EQ(world.device_backend(), "none");
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), self.arguments.at(0));
  EXPECT_EQ(values(tensor), std::vector<float>(4, 3));
  auto const pair = world.split({{1, 0}});
  auto other = filled(pair, 4);
  pair.all_reduce(other);
  EXPECT_EQ(pair.device_backend(), self.arguments.at(0));
  EXPECT_EQ(values(other), std::vector<float>(4, 3));
  return 0;
}

void expect_choice(char const* expected, RankOptions options) {
  options.arguments = {expected};
  expect_job_ok(2, "nccl_choice", std::move(options));
}

/// `library` is that of rank 1.
void expect_staged_with(char const* library) {
  auto options = gpu_ranks();
  options.rank_environment[1]["CROSSRANK_NCCL_LIBRARY"] = library;
  expect_choice("staged", std::move(options));
}

TEST(NcclChoice, is_nccl_where_all_ranks_can) { expect_choice("nccl", gpu_ranks()); }

TEST(NcclChoice, is_staged_where_a_rank_has_no_library) { expect_staged_with("/nowhere/libnccl.so.2"); }

TEST(NcclChoice, is_staged_where_a_rank_has_another_version) { expect_staged_with(CROSSRANK_TEST_NCCL_2_18); }

TEST(NcclChoice, is_staged_where_a_rank_has_a_version_that_is_too_old) { expect_staged_with(CROSSRANK_TEST_NCCL_2_16); }

TEST(NcclChoice, is_staged_where_the_library_of_a_rank_lacks_a_function) {
  expect_staged_with(CROSSRANK_TEST_NCCL_INCOMPLETE);
}

TEST(NcclChoice, is_staged_where_two_ranks_share_a_gpu) {
  auto options = gpu_ranks();
  options.environment["EMULATED_GPU_COUNT"] = "1";
  expect_choice("staged", std::move(options));
}

TEST(NcclChoice, is_staged_where_the_setting_says_so) {
  auto options = gpu_ranks();
  options.rank_environment[0]["CROSSRANK_DEVICE"] = "staged";
  expect_choice("staged", std::move(options));
}

TEST(NcclChoice, is_staged_where_nccl_refuses_on_one_rank) {
  auto options = gpu_ranks();
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = "ncclCommInitRankConfig:1:2,ncclCommInitRankConfig:2:2";
  expect_choice("staged", std::move(options));
}

TEST(NcclChoice, is_staged_where_the_first_rank_cannot_draw_an_id) {
  auto options = gpu_ranks();
  options.environment["EMULATED_GPU_FAIL"] = "ncclGetUniqueId:1:2,ncclGetUniqueId:2:2";
  expect_choice("staged", std::move(options));
}

CROSSRANK_RANK_SCENARIO(nccl_forced) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 4);
  try {
    world.all_reduce(tensor);
    ADD_FAILURE() << "no error";
  } catch (UnavailableError const& e) {
    EXPECT_EQ(e.info().operation, "all_reduce");
    EXPECT_THAT(e.info().message, testing::HasSubstr("rank 1 cannot use NCCL"));
    EXPECT_TRUE(e.group_usable());
  }
  world.barrier();
  return end_gpu_rank();
}

TEST(NcclChoice, is_an_error_on_all_ranks_where_the_setting_wants_nccl_and_a_rank_lacks_it) {
  auto options = gpu_ranks();
  options.environment["CROSSRANK_DEVICE"] = "nccl";
  options.rank_environment[1]["CROSSRANK_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2";
  expect_job_ok(2, "nccl_forced", std::move(options));
}

/// Argument: what `device_backend()` is once the coordinator has been made.
CROSSRANK_RANK_SCENARIO(nccl_of_a_coordinator) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {{0, 1}}, {.name = "tp", .device_communicator = true});
  EXPECT_EQ(group.device_group().device_backend(), self.arguments.at(0));
  auto const on_host = Tensor::of(std::vector<float>(3, 1), {3});
  EXPECT_EQ(values(group.all_reduce(on_host)), std::vector<float>(3, 2));
  if (group.device() != Device::cpu() && self.arguments.at(0) != "none") {
    reset_emulated_counts();
    EXPECT_EQ(values(group.all_reduce(filled(world, 3))), std::vector<float>(3, 3));
    EXPECT_EQ(emulated_count("ncclCommInitRankConfig"), 0U);
  }
  world.barrier();
  return end_gpu_rank();
}

TEST(NcclChoice, is_made_with_a_coordinator) {
  for (auto const version : {EmulatedNccl::newest, EmulatedNccl::none}) {
    auto options = gpu_ranks(version);
    options.arguments = {version == EmulatedNccl::none ? "staged" : "nccl"};
    expect_job_ok(2, "nccl_of_a_coordinator", std::move(options));
  }
}

TEST(NcclChoice, is_not_made_with_a_coordinator_where_a_rank_has_no_gpu) {
  for (int const without : {1, 2}) {
    auto options = gpu_ranks();
    options.arguments = {"none"};
    for (int rank = 2 - without; rank < 2; ++rank)
      options.rank_environment[rank]["CROSSRANK_CUDA_LIBRARY"] = "/nowhere/libcuda.so.1";
    expect_job_ok(2, "nccl_of_a_coordinator", std::move(options));
  }
}

CROSSRANK_RANK_SCENARIO(nccl_closed_gpu) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {{0, 1}}, {.name = "tp", .device_communicator = true});
  try {
    static_cast<void>(group.graph_capture());
    EXPECT_EQ(self.rank, 0);
  } catch (Error const& e) {
    EXPECT_EQ(self.rank, 1) << e.what();
  }
  EXPECT_EQ(group.device_group().device_backend(), "staged");
  world.barrier();
  return 0;
}

TEST(NcclChoice, is_staged_where_a_rank_cannot_open_its_gpu) {
  auto options = gpu_ranks();
  std::string faults;
  for (int nth = 1; nth <= 20; ++nth) faults += "cuDevicePrimaryCtxRetain:" + std::to_string(nth) + ":46,";
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = faults;
  expect_job_ok(2, "nccl_closed_gpu", std::move(options));
}

}  // namespace
}  // namespace nccl_choice_test
}  // namespace crossrank::test
