#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/mesh.hpp>
#include <crossrank/tensor/concat.hpp>

#include "tests/collectives/coordinator/group_values.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"

/// Jobs of meshes with tensors on emulated GPUs.
namespace crossrank::test {
namespace {

/// Moves tensors on the rank's GPU through the job and the groups inside it.
void moves_gpu_tensors(JobCollective const& job, char const* backend) {
  auto const gpu = default_device();
  EXPECT_EQ(gpu.kind, Device::Kind::cuda);
  EXPECT_EQ(job.default_device(), gpu);
  EXPECT_EQ(job.local().default_device(), gpu);
  EXPECT_EQ(job.tp_world().default_device(), gpu);
  for (Collective const& group :
       {Collective(job), job.dp_world(), Collective(job.tp_world()), Collective(job.local())}) {
    auto reduced = counting({5}, 0.F, 1.F);
    group.all_reduce(reduced);
    EXPECT_EQ(group.device_backend(), backend);
    EXPECT_TRUE(same(reduced, counting({5}, 0.F, static_cast<float>(group.world_size()))));
  }
  for (auto const* inside : {&job, &job.tp_world()}) {
    std::vector<Tensor> outs;
    for (int i = 0; i < inside->world_size(); ++i) outs.push_back(Tensor::zeros({2, 3}, Dtype::f32, gpu));
    inside->all_gather_to_list(outs, counting({2, 3}, 1.F, static_cast<float>(inside->rank())));
    for (std::size_t i = 0; i < outs.size(); ++i)
      EXPECT_TRUE(same(outs[i], counting({2, 3}, 1.F, static_cast<float>(i))));
  }
}

CROSSRANK_RANK_SCENARIO(mesh_on_gpus) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  {
    MeshCollective const job(world, {.tp_size = 2});
    moves_gpu_tensors(job, self.arguments.at(0).c_str());
    auto shard = counting({4}, 0.F, static_cast<float>(world.rank()));
    (*job.mesh())["dp_shard"].all_reduce(shard);
    EXPECT_TRUE(same(shard, counting({4}, 0.F, static_cast<float>(2 * (world.rank() % 2) + 2))));
    EXPECT_EQ(MeshCollective(world, {.device = Device::cpu()}).default_device(), Device::cpu());
    EXPECT_EQ(FakeCollective().default_device(), default_device());
    EXPECT_EQ(FakeCollective(Device::cpu()).default_device(), Device::cpu());
  }
  world.close();
  return end_gpu_rank();
}

RankOptions mesh_ranks(EmulatedNccl version, char const* backend) {
  auto options = gpu_ranks(version);
  options.arguments = {backend};
  return options;
}

void run_mesh(std::string_view scenario, EmulatedNccl version, char const* backend) {
  expect_job_ok(4, scenario, mesh_ranks(version, backend));
}

TEST(MeshOnGpus, moves_gpu_tensors_with_nccl) { run_mesh("mesh_on_gpus", EmulatedNccl::newest, "nccl"); }
TEST(MeshOnGpus, moves_gpu_tensors_through_host_memory) { run_mesh("mesh_on_gpus", EmulatedNccl::none, "staged"); }

CROSSRANK_RANK_SCENARIO(partitions_on_gpus) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  {
    MeshGroupCoordinator const cluster(world, {{.name = "train", .ranks = {0, 1, 2}, .local_world_size = 3},
                                               {.name = "rollout", .ranks = {3}, .local_world_size = 1}});
    moves_gpu_tensors(*cluster.collective(), self.arguments.at(0).c_str());
    MeshGroupCoordinator const on_cpu(world, {{.name = "all", .ranks = {0, 1, 2, 3}}}, Device::cpu());
    EXPECT_EQ(on_cpu.collective()->default_device(), Device::cpu());
  }
  world.close();
  return end_gpu_rank();
}

TEST(MeshOnGpus, gives_partitions_the_gpus_of_their_ranks) {
  run_mesh("partitions_on_gpus", EmulatedNccl::newest, "nccl");
}

CROSSRANK_RANK_SCENARIO(best_collective_on_gpus) {
  auto const job = build_best_collective({.mesh = {.tp_size = 2}});
  CaseDevice const device(default_device());
  moves_gpu_tensors(job, self.arguments.at(0).c_str());
  job.close();
  return end_gpu_rank();
}

TEST(MeshOnGpus, is_what_build_best_collective_returns) {
  auto options = mesh_ranks(EmulatedNccl::newest, "nccl");
  // The job, and its thread, stay until the process ends.
  options.environment["EMULATED_GPU_EXIT_CODE"] = "0";
  auto const* const given = std::getenv("TSAN_OPTIONS");
  options.environment["TSAN_OPTIONS"] = std::string(given == nullptr ? "" : given) + ":report_thread_leaks=0";
  expect_job_ok(4, "best_collective_on_gpus", std::move(options));
}

}  // namespace
}  // namespace crossrank::test
