#include <array>
#include <cstdlib>
#include <span>

#include <crossrank/mesh.hpp>
#include <crossrank/objects.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/coordinator/group_fixture.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/spawn_rank.hpp"

namespace crossrank::test::mesh_collective_test {
namespace {

using testing::HasSubstr;

/// Uses everything that a job offers: the whole job and the jobs inside it.
void is_a_job(JobCollective const& job) {
  int const n = job.world_size();
  auto const mine = counting({2, 2}, 1.F, static_cast<float>(job.rank()));
  std::vector<Tensor> outs;
  for (int i = 0; i < n; ++i) outs.push_back(Tensor::zeros({2, 2}, Dtype::f32));
  job.all_gather_to_list(outs, mine);
  auto stacked = Tensor::zeros({n, 2, 2}, Dtype::f32);
  job.all_gather(stacked, mine);
  auto flat = Tensor::zeros({4 * n}, Dtype::f32);
  job.all_gather(flat, mine);
  for (int i = 0; i < n; ++i) {
    auto const expected = counting({2, 2}, 1.F, static_cast<float>(i));
    EXPECT_TRUE(same(outs[as_size(i)], expected));
    EXPECT_TRUE(same(stacked.narrow(0, i, 1).reshape({2, 2}), expected));
    EXPECT_TRUE(same(flat.narrow(0, 4 * i, 4).reshape({2, 2}), expected));
  }
  auto sum = Tensor::scalar(1.F);
  job.all_reduce(sum);
  EXPECT_EQ(sum.item<float>(), static_cast<float>(n));
  auto from_last = Tensor::scalar(job.rank());
  job.broadcast(from_last, {n - 1});
  EXPECT_EQ(from_last.item<int>(), n - 1);
  EXPECT_EQ(job.all_gather_objects(job.rank()).size(), as_size(n));
  std::vector<std::string> list{std::to_string(job.rank())};
  job.broadcast_objects(list);
  EXPECT_EQ(list.front(), "0");
  EXPECT_EQ(job.is_master(), job.rank() == 0);
  EXPECT_FALSE(job.process_group().has_value());
  EXPECT_EQ(job.default_device(), default_device());
  EXPECT_THROW(job.all_gather_to_list(std::span(outs).first(outs.size() - 1), mine), UsageError);
  EXPECT_THROW(job.broadcast(sum, {n}), UsageError);
  auto short_one = Tensor::zeros({n, 3}, Dtype::f32);
  EXPECT_THROW(job.all_gather(short_one, mine), UsageError);
  auto ranks = per_rank<int>(n);
  job.all_gather(ranks, std::span<int const>(std::array{job.rank()}));
  EXPECT_EQ(ranks.back(), n - 1);
  EXPECT_EQ(job.tp_rank(), job.tp_world().rank());
  EXPECT_EQ(job.tp_world_size(), job.tp_world().world_size());
  EXPECT_EQ(job.dp_rank(), job.dp_world().rank());
  job.barrier();
}

/// Uses the job, and the jobs of its node and of its tensor-parallel group, which offer the same.
void is_the_whole_job(JobCollective const& job) {
  is_a_job(job);
  auto const& local = job.local();
  is_a_job(local);
  EXPECT_EQ(local.local().world_size(), local.world_size());
  EXPECT_EQ(local.tp_rank(), job.tp_rank());
  EXPECT_EQ(local.tp_world_size(), job.tp_world_size());
  EXPECT_EQ(local.dp_world_size(), local.world_size() / job.tp_world_size());
  EXPECT_EQ(local.mesh(), nullptr);
  auto const& tp = job.tp_world();
  is_a_job(tp);
  EXPECT_EQ(tp.tp_rank(), job.tp_rank());
  EXPECT_EQ(tp.tp_world_size(), tp.world_size());
  EXPECT_EQ(tp.dp_world_size(), 1);
  EXPECT_EQ(tp.dp_world().global_rank(), job.global_rank());
  for (auto const* inside : {&local, &tp}) {
    EXPECT_EQ(inside->local_rank(), job.local_rank());
    EXPECT_EQ(inside->global_rank(), job.global_rank());
  }
}

TEST(FakeCollective, is_a_job_of_one_rank) {
  FakeCollective const job;
  is_the_whole_job(job);
  EXPECT_EQ(job.mesh(), nullptr);
  EXPECT_EQ(job.tp_world_size(), 1);
  EXPECT_EQ(job.dp_rank(), 0);
  EXPECT_EQ(job.local().world_size(), 1);
  EXPECT_EQ(job.default_device(), default_device());
  Collective const& world = job;
  EXPECT_EQ(world.backend(), "fake");
  job.close();
  job.close();
  EXPECT_THROW(job.barrier(), UsageError);
}

TEST(MeshCollective, puts_tensor_parallelism_fastest) {
  run_thread_ranks(4, [](Collective const& world) {
    MeshCollective const job(world, {.tp_size = 2});
    is_the_whole_job(job);
    EXPECT_EQ(job.tp_rank(), world.rank() % 2);
    EXPECT_EQ(job.dp_rank(), world.rank() / 2);
    EXPECT_EQ(job.dp_world_size(), 2);
    ASSERT_NE(job.mesh(), nullptr);
    EXPECT_EQ(job.mesh()->coordinate("dp_replicate"), 0);
    EXPECT_EQ(job.mesh()->coordinate("dp_shard"), world.rank() / 2);
    EXPECT_EQ(job.tp_world().all_gather_objects(world.rank()),
              (std::vector{world.rank() / 2 * 2, world.rank() / 2 * 2 + 1}));
    EXPECT_EQ(job.dp_world().all_gather_objects(world.rank()), (std::vector{world.rank() % 2, world.rank() % 2 + 2}));
    EXPECT_EQ(&job.tp_world(), &job.tp_world());
    world.barrier();
  });
}

TEST(MeshCollective, knows_nodes_and_replicas) {
  run_thread_ranks(4, [](Collective const& world) {
    MeshCollective const job(world, {.sharding_world_size = 2, .local_world_size = 2});
    is_the_whole_job(job);
    EXPECT_EQ(job.local_rank(), world.local_rank()) << "on the node that the ranks share";
    EXPECT_EQ(job.local().rank(), world.rank() % 2);
    EXPECT_EQ(job.local().is_master(), world.rank() % 2 == 0);
    EXPECT_EQ(job.local().world_size(), 2);
    EXPECT_EQ(job.node_mesh().coordinate("nodes"), world.rank() / 2);
    EXPECT_EQ(job.dp_mesh().coordinate("dp_replicate"), world.rank() / 2);
    EXPECT_EQ(job.dp_mesh()["dp_shard"].world_size(), 2);
    EXPECT_EQ(job.tp_mesh()["tp"].world_size(), 1);
    world.barrier();
  });
}

std::string refusal(Collective const& world, MeshOptions const& options) {
  return refusal_of<UsageError>([&] { MeshCollective const job(world, options); });
}

TEST(MeshCollective, refuses_indivisible_sizes_and_names_them) {
  run_thread_ranks(4, [](Collective const& world) {
    EXPECT_THAT(refusal(world, {.tp_size = 3}), HasSubstr("got 3"));
    EXPECT_THAT(refusal(world, {.tp_size = 0}), HasSubstr("tp_size"));
    EXPECT_THAT(refusal(world, {.local_world_size = 3}), HasSubstr("ranks of a node"));
    EXPECT_THAT(refusal(world, {.tp_size = 2, .local_world_size = 1}), HasSubstr("divisor of 1"));
    EXPECT_THAT(refusal(world, {.tp_size = 2, .sharding_world_size = 4}), HasSubstr("got 8"));
    EXPECT_THAT(refusal(world, {.sharding_world_size = 0}), HasSubstr("sharding_world_size"));
    world.barrier();
  });
}

/// Even ranks are on one host and odd ones on another, as `mpirun --map-by node` places them.
TEST(MeshCollective, refuses_nodes_that_are_not_rows_unless_told_otherwise) {
  run_message_ranks(4, [](Collective const& world, MemoryHub&) {
    EXPECT_THAT(refusal(world, {}), HasSubstr("expected rank 1 on the node of rank 0, got on the node of rank 1"));
    MeshCollective const alone(world, {.local_world_size = 1});
    EXPECT_EQ(alone.local().world_size(), 1);
    MeshCollective const in_rows(world, {.ranks = {0, 2, 1, 3}});
    EXPECT_EQ(in_rows.local_world_size(), 2);
    EXPECT_EQ(in_rows.local().all_gather_objects(world.rank()), (std::vector{world.rank() % 2, world.rank() % 2 + 2}));
    world.barrier();
  });
}

TEST(MeshCollective, refuses_nodes_of_different_sizes_on_all_ranks) {
  run_message_ranks(3, [](Collective const& world, MemoryHub&) {
    EXPECT_THAT(refusal(world, {}),
                HasSubstr("is not divisible by the ranks of a node: expected a divisor of 3, got 2"));
    world.barrier();
  });
}

TEST(MeshCollective, accepts_a_list_of_ranks_and_reports_ranks_not_on_it) {
  run_thread_ranks(3, [](Collective const& world) {
    MeshOptions const options{.tp_size = 2, .ranks = {2, 0}};
    if (world.rank() == 1) {
      EXPECT_THAT(refusal(world, options), HasSubstr("this rank is not listed"));
    } else {
      MeshCollective const job(world, options);
      EXPECT_EQ(job.tp_rank(), world.rank() == 2 ? 0 : 1);
      is_the_whole_job(job);
    }
    world.barrier();
  });
}

TEST(MeshGroupCoordinator, builds_the_job_of_the_partition_of_this_rank_or_none) {
  run_thread_ranks(4, [](Collective const& world) {
    MeshGroupCoordinator const cluster(
        world, {{.name = "train", .ranks = {3, 1}, .tp_size = 2}, {.name = "serve", .ranks = {0}}});
    EXPECT_EQ(cluster.partitions().size(), 2U);
    if (world.rank() == 2) {
      EXPECT_EQ(cluster.collective(), nullptr);
      EXPECT_EQ(cluster.partition(), nullptr);
    } else {
      ASSERT_NE(cluster.collective(), nullptr);
      EXPECT_EQ(cluster.partition()->name, world.rank() == 0 ? "serve" : "train");
      EXPECT_EQ(cluster.collective()->rank(), world.rank() == 1 ? 1 : 0);
      is_the_whole_job(*cluster.collective());
    }
    world.barrier();
  });
}

/// Rank 2, in a pipeline of ranks 0 and 2, uses the third device of its node.
TEST(MeshCollective, gives_partitions_the_local_ranks_of_their_node) {
  run_thread_ranks(4, [](Collective const& world) {
    MeshGroupCoordinator const cluster(world, {{.name = "even", .ranks = {0, 2}}, {.name = "odd", .ranks = {3, 1}}});
    auto const& job = *cluster.collective();
    EXPECT_EQ(job.local_rank(), world.rank());
    EXPECT_EQ(job.local_world_size(), 4);
    EXPECT_EQ(job.rank(), world.rank() == 0 || world.rank() == 3 ? 0 : 1);
    EXPECT_EQ(job.local_rank_in_group(), job.rank());
    EXPECT_EQ(job.is_local_master(), job.rank() == 0);
    auto const pipeline = GroupCoordinator::create(world, {{0, 2}, {1, 3}}, {.name = "pp"});
    EXPECT_EQ(pipeline.local_rank(), world.rank());
    EXPECT_EQ(pipeline.rank_in_group(), world.rank() / 2);
    world.barrier();
  });
}

TEST(MeshGroupCoordinator, refuses_overlapping_and_invalid_partitions) {
  run_thread_ranks(2, [](Collective world) {
    auto const text = [&](std::vector<MeshPartition> partitions) {
      try {
        MeshGroupCoordinator const cluster(world, std::move(partitions));
      } catch (UsageError const& e) {
        return std::string(e.what());
      }
      return std::string("accepted");
    };
    EXPECT_THAT(text({{.name = "a", .ranks = {0, 1}}, {.name = "b", .ranks = {1}}}), HasSubstr("rank 1"));
    EXPECT_THAT(text({{.name = "a", .ranks = {0}}, {.name = "a", .ranks = {1}}}), HasSubstr("name"));
    EXPECT_THAT(text({{.name = "a", .ranks = {}}}), HasSubstr("no ranks"));
    EXPECT_THAT(text({{.name = "a", .ranks = {2}}}), HasSubstr("rank 2"));
    world.barrier();
  });
}

CROSSRANK_RANK_SCENARIO(best_collective) {
  auto const job = build_best_collective({.mesh = {.tp_size = self.world_size}});
  EXPECT_EQ(job.mesh() != nullptr, self.world_size > 1);
  EXPECT_EQ(job.tp_world_size(), self.world_size);
  EXPECT_EQ(&build_best_collective({.mesh = {.tp_size = self.world_size}}).world(), &job.world());
  EXPECT_THROW(static_cast<void>(build_best_collective({.mesh = {.tp_size = 77}})), UsageError);
  is_the_whole_job(job);
  job.close();
  return 0;
}

TEST(BuildBestCollective, returns_the_same_job_on_every_call) {
  for (int const ranks : {1, 2, 3}) {
    auto const job = run_ranks(ranks, "best_collective");
    EXPECT_TRUE(job.ok()) << job.text();
  }
}

TEST(BuildBestCollective, builds_one_job_for_each_thread_that_is_a_rank) {
  auto const job_id = random_job_id();
  auto const build = [&](int rank) {
    BestCollectiveOptions options{.mesh = {.tp_size = 2}, .connect = thread_options(rank, 2, {.job_id = job_id})};
    auto const job = build_best_collective(options);
    EXPECT_EQ(job.rank(), rank);
    EXPECT_EQ(job.tp_world_size(), 2);
    EXPECT_EQ(&build_best_collective(options).world(), &job.world());
    EXPECT_EQ(&build_best_collective({.mesh = options.mesh}).world(), &job.world()) << "the job of this thread";
    options.mesh.tp_size = 77;
    EXPECT_THROW(static_cast<void>(build_best_collective(options)), UsageError);
    is_the_whole_job(job);
    job.close();
  };
  for (auto const& error : run_threads({[&] { build(0); }, [&] { build(1); }})) EXPECT_EQ(text_of(error), "");
  EXPECT_THROW(static_cast<void>(build_best_collective()), UsageError) << "this thread is no rank";
}

CROSSRANK_RANK_SCENARIO(no_fallback) {
  EXPECT_THROW(static_cast<void>(build_best_collective({.connect = {.backend = "fake"}})), UnavailableError);
  return 0;
}

TEST(BuildBestCollective, refuses_the_fake_backend_for_several_ranks) {
  auto const job = run_ranks(2, "no_fallback");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test::mesh_collective_test
