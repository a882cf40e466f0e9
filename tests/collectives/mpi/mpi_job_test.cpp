#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/mpi.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Run by mpirun on two hosts, declared or real. Each ctest names the cases that it runs.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ConnectOptions composite(std::string job, std::chrono::milliseconds timeout = std::chrono::minutes(5)) {
  return {.backend = "composite", .timeout = timeout, .job_id = std::move(job), .arena_cap = std::uint64_t{64} << 20};
}

/// Returns a tensor whose values depend on its rank.
Tensor shard(int rank, std::int64_t rows) {
  auto tensor = Tensor::empty({rows, 64}, Dtype::i32);
  int value = rank * 1'000'000;
  for (auto& element : tensor.as_mutable<std::int32_t>()) element = value++;
  return tensor;
}

bool is_shard(Tensor const& tensor, int rank, std::int64_t rows) {
  auto const expected = shard(rank, rows);
  return tensor.shape() == expected.shape() && std::ranges::equal(tensor.bytes(), expected.bytes());
}

TEST(MpiJob, knows_its_nodes) {
  auto world = connect(composite("nodes"));
  auto const ranks = world.world_size();
  EXPECT_EQ(world.backend(), "composite");
  EXPECT_EQ(world.local_world_size(), ranks / 2);
  EXPECT_EQ(world.local_rank(), world.rank() % (ranks / 2));
  EXPECT_EQ(world.transport()->node_memory() != nullptr, true);
  auto const node = world.split_by(world.rank() < ranks / 2 ? 0 : 1);
  EXPECT_EQ(node.backend(), "shm");
  EXPECT_EQ(node.world_size(), ranks / 2);
  auto const across = world.split_by(world.rank() % (ranks / 2));
  EXPECT_EQ(across.world_size(), 2);
  EXPECT_EQ(across.local_size_in_group(), 1);
  EXPECT_EQ(across.local_world_size(), ranks / 2);
  EXPECT_EQ(across.backend(), "composite");
  world.close();
}

/// Makes MPI calls on the native group of a job, between calls on the job. Both order the ranks in the same way.
void use_native_group(Collective const& world, MPI_Comm expected) {
  MeshCollective const job(world);
  auto const group = job.process_group();
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->vendor, "mpi");
  MPI_Comm const native = mpi::communicator_of(*group);
  int same = MPI_UNEQUAL;
  ASSERT_EQ(MPI_Comm_compare(native, expected, &same), MPI_SUCCESS);
  EXPECT_EQ(same, MPI_CONGRUENT) << "expected the same ranks in the same order on a separate communicator";
  int const next = (job.rank() + 1) % job.world_size();
  int const previous = (job.rank() + job.world_size() - 1) % job.world_size();
  int theirs = -1;
  int mine = job.rank();
  MPI_Request sending = MPI_REQUEST_NULL;
  MPI_Isend(&mine, 1, MPI_INT, next, 0, native, &sending);
  job.barrier();
  MPI_Recv(&theirs, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, native, MPI_STATUS_IGNORE);
  MPI_Wait(&sending, MPI_STATUS_IGNORE);
  EXPECT_EQ(theirs, previous);
}

TEST(MpiJob, has_a_communicator_of_all_its_ranks) {
  auto world = connect(composite("native"));
  use_native_group(world, MPI_COMM_WORLD);
  MeshCollective const half(world.split_by(world.rank() % 2));
  EXPECT_FALSE(half.process_group().has_value());
  EXPECT_FALSE(half.local().process_group().has_value());
  error_of<UsageError>([] { static_cast<void>(mpi::communicator_of({.vendor = "nccl"})); });
  world.close();
}

TEST(MpiJob, moves_large_payloads_between_nodes) {
  auto world = connect(composite("large"));
  std::size_t const large = (std::size_t{9} << 20) + 5;
  for (int root : {0, world.world_size() - 1, 1}) {
    auto bytes = pattern(world.rank() == root ? large : 0, root);
    bytes.resize(large);
    auto tensor = Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(large)}, Dtype::u8);
    world.broadcast(tensor, {root});
    EXPECT_EQ(bytes, pattern(large, root));
  }
  auto const size_of = [&](int rank) { return (std::size_t{1} << 20) * as_size(rank) + 3; };
  auto const all = world.all_gatherv(pattern(size_of(world.rank()), world.rank()));
  for (int rank = 0; rank < world.world_size(); ++rank) EXPECT_EQ(at_rank(all, rank), pattern(size_of(rank), rank));
  std::vector<float> values(3'000'000, static_cast<float>(world.rank() + 1));
  world.all_reduce(std::span(values));
  EXPECT_EQ(values.back(), static_cast<float>(world.world_size() * (world.world_size() + 1) / 2));
  world.close();
}

/// The writer is the last rank. One reader shares its node, and the others read over the network.
TEST(MpiJob, sends_queue_messages_to_all_nodes) {
  auto world = connect(composite("queue"));
  auto const writer = world.world_size() - 1;
  {
    auto const queue = MessageQueue::create(world, {.writer_rank = writer, .chunk_bytes = 4096, .chunks = 3});
    for (int i = 0; i < 200; ++i) {
      auto const message = pattern(as_size(i) * 97, i);
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      } else {
        ASSERT_EQ(queue.dequeue_bytes(), message) << "message " << i;
      }
    }
    if (queue.is_writer()) {
      queue.enqueue(TensorDict{{"w", shard(writer, 500)}});
      queue.close();
    } else {
      EXPECT_TRUE(is_shard(queue.dequeue<TensorDict>().value().tensor("w"), writer, 500));
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt);
    }
  }
  world.close();
}

TEST(MpiJob, gathers_tensors_from_all_nodes) {
  auto world = connect(composite("tensors"));
  SharedMemoryWorkspace const workspace(world);
  for (auto const receiver : {0, world.world_size() - 1}) {
    std::vector<int> ranks{receiver};
    for (int rank = 0; rank < world.world_size(); ++rank) {
      if (rank != receiver) ranks.push_back(rank);
    }
    for (std::int64_t const rows : {0, 1, 5000}) {
      auto const mine = world.rank() == 1 ? Tensor() : shard(world.rank(), rows + world.rank());
      auto items = get_tensors_parallel(mine, ranks, world, {.workspace = workspace});
      EXPECT_EQ(items.size(), world.rank() == receiver ? ranks.size() : 0U);
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (ranks[i] == 1) {
          EXPECT_FALSE(items[i].defined());
        } else {
          EXPECT_TRUE(is_shard(items[i], ranks[i], rows + ranks[i])) << "rank " << ranks[i];
        }
      }
      items.close();
    }
  }
  world.close();
}

TEST(MpiJob, sends_items_while_their_owners_wait_in_another_group) {
  auto world = connect(composite("elsewhere"));
  auto const everyone = [&] {
    auto ranks = all_ranks(world.world_size());
    return world.split({ranks}, "other");
  };
  auto const other = everyone();
  for (int round = 0; round < 3; ++round) {
    auto items = get_tensors_parallel(shard(world.rank(), 5000), world);
    for (std::size_t i = 0; i < items.size(); ++i) EXPECT_TRUE(is_shard(items[i], static_cast<int>(i), 5000));
    other.barrier();
    items.close();
  }
  world.close();
}

TEST(MpiJob, skips_items_that_the_receiver_does_not_read) {
  auto world = connect(composite("skips"));
  for (int round = 0; round < 3; ++round) {
    auto items = get_tensors_parallel(shard(world.rank(), 100), world);
    if (items.is_receiver() && round == 1) {
      EXPECT_TRUE(is_shard(items[items.size() - 1], world.world_size() - 1, 100));
    }
    items.close();
  }
  world.close();
}

/// One group per column of a tensor-parallel job whose stages are on different nodes, as in an export.
TEST(MpiJob, gathers_configs_of_each_column_through_memory_and_files) {
  auto world = connect(composite("columns"));
  auto const per_stage = world.world_size() / 2;
  auto column = world.split_by(world.rank() % per_stage);
  auto const folder = std::filesystem::path(std::getenv("CROSSRANK_TEST_FOLDER"));
  for (bool const files : {false, true}) {
    RankState state;
    state.config = {{"rank", world.rank()}, {"layers", {world.rank() * 2, world.rank() * 2 + 1}}};
    state.weights.insert_or_assign("layer.weight", shard(world.rank(), 300));
    state.weights.insert_or_assign("scale", Tensor::scalar<float>(static_cast<float>(world.rank())));
    GatherOptions options;
    if (files) options.workspace_path = folder / ("column" + std::to_string(world.rank() % per_stage));
    auto states = get_configs_parallel(state, column, options);
    EXPECT_EQ(states.size(), column.rank() == 0 ? 2U : 0U);
    for (std::size_t stage = 0; stage < states.size(); ++stage) {
      auto const& item = states[stage];
      EXPECT_EQ(item.rank, world.rank() + static_cast<int>(stage) * per_stage);
      EXPECT_EQ(item.state.config.at("rank"), item.rank);
      EXPECT_TRUE(is_shard(item.state.weights.at("layer.weight"), item.rank, 300));
      EXPECT_EQ(item.state.weights.at("scale").item<float>(), static_cast<float>(item.rank));
    }
    states.close();
  }
  column.close();
  world.close();
}

TEST(MpiJob, reports_a_rank_that_cannot_do_its_part_to_all) {
  auto world = connect(composite("part"));
  auto const folder = std::filesystem::path(std::getenv("CROSSRANK_TEST_FOLDER"));
  auto const broken = folder / "file" / "below";
  if (world.rank() == 0) std::ofstream(folder / "file") << "not a folder";
  world.barrier();
  bool const last = world.rank() == world.world_size() - 1;
  GatherOptions options{.workspace_path = last ? broken : folder / "sound"};
  auto const gather = [&] { get_tensors_parallel(shard(world.rank(), 4), world, options).close(); };
  if (last) {
    error_of<IoError>(gather);
  } else {
    EXPECT_THAT(error_of<RemoteError>(gather).failed_ranks, ElementsAre(world.world_size() - 1));
  }
  world.barrier();
  world.close();
}

/// The child runs its exit handlers. They must not end MPI for the ranks, and must not wait for them.
TEST(MpiJob, lets_a_forked_child_exit) {
  auto world = connect(composite("fork"));
  pid_t const child = ::fork();
  if (child == 0) std::exit(7);
  int status = -1;
  pid_t ended = 0;
  for (int poll = 0; poll < 2000 && ended == 0; ++poll) {
    ended = ::waitpid(child, &status, WNOHANG);
    if (ended == 0) ::usleep(10'000);
  }
  if (ended == 0) ::kill(child, SIGKILL);
  EXPECT_TRUE(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7) << "status " << status;
  world.barrier();
  world.close();
}

/// All ranks but the first connect. The first has no communicator, and an intercommunicator is not a group of ranks.
void connect_what_is_a_group(int rank, int ranks) {
  MPI_Comm others = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 0, rank, &others);
  if (rank == 0) {
    EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(mpi::connect(others)); }).message, HasSubstr("COMM_NULL"));
  } else {
    auto group = mpi::connect(others, {.arena_cap = std::uint64_t{64} << 20});
    std::vector<std::int64_t> values(3000, rank);
    group.all_reduce(std::span(values));
    EXPECT_EQ(values.back(), ranks * (ranks - 1) / 2);
    EXPECT_EQ(group.rank(), rank - 1);
    group.close();
    MPI_Comm_free(&others);
  }
  if (ranks == 1) return;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &between);
  EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(mpi::connect(between)); }).message, HasSubstr("intercomm"));
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

/// A program that owns MPI initializes it, hands over its communicators, and finalizes it.
TEST(MpiOwner, hands_over_communicators) {
  int provided = 0;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SINGLE, &provided), MPI_SUCCESS);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  connect_what_is_a_group(rank, ranks);
  MPI_Comm backwards = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
  auto world = mpi::connect(MPI_COMM_WORLD, {.arena_cap = std::uint64_t{64} << 20});
  auto reversed = mpi::connect(backwards, {.backend = "mpi", .check = CheckLevel::off});
  use_native_group(world, MPI_COMM_WORLD);
  use_native_group(reversed, backwards);
  auto unchecked = Tensor::zeros({3}, rank == 0 ? Dtype::f32 : Dtype::i32);
  EXPECT_NO_THROW(reversed.broadcast(unchecked));  // the same number of bytes; any other check level reports a mismatch
  EXPECT_EQ(world.rank(), rank);
  EXPECT_EQ(world.backend(), "composite");
  EXPECT_EQ(reversed.rank(), ranks - 1 - rank);
  EXPECT_EQ(reversed.backend(), "mpi");
  for (int i = 0; i < 20; ++i) {
    std::vector<std::int64_t> values(2000, rank);
    world.all_reduce(std::span(values));
    EXPECT_EQ(values.back(), ranks * (ranks - 1) / 2);
    int theirs = rank;
    MPI_Allreduce(MPI_IN_PLACE, &theirs, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(theirs, ranks * (ranks - 1) / 2);
    reversed.barrier();
  }
  auto items = get_tensors_parallel(shard(rank, 10), world);
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_TRUE(is_shard(items[i], static_cast<int>(i), 10));
  items.close();
  reversed.close();
  world.close();
  MPI_Comm_free(&backwards);
  ASSERT_EQ(MPI_Finalize(), MPI_SUCCESS);
  error_of<UsageError>([] { static_cast<void>(mpi::connect(MPI_COMM_WORLD)); });
}

}  // namespace
}  // namespace crossrank::test
